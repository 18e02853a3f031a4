"""The connections to agents, where there is none to connect to."""

from __future__ import annotations

from pathlib import Path

from malletrain.supervisor.agent_links import AgentLinks
from tests.support.certificates import certificate
from tests.support.ports import free_port
from tests.support.waiting import wait_until


def test_a_node_is_still_wanted_back_after_its_agent_has_ended(tmp_path: Path) -> None:
    """The agent ends once its workers have, and those of other nodes may end a moment later."""
    links = AgentLinks(certificate(tmp_path, "supervisor"))
    links.update({"n1": f"127.0.0.1:{free_port()}"})
    first = links.get("n1")
    assert first is not None
    wait_until(lambda: first.is_lost, 10, "the refusal")
    assert links.leaving == frozenset()
    first.is_leaving = True
    second = links.get("n1")
    assert second is not None
    assert second is not first
    wait_until(lambda: second.is_lost, 10, "another refusal")
    assert links.leaving == {"n1"}
    links.update({"n1": f"127.0.0.1:{free_port()}"})
    third = links.get("n1")
    assert third is not None
    assert links.leaving == frozenset(), "another agent is on the node"
    links.close()
