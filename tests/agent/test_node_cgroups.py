"""Names of an agent's cgroups, and what it does where there are none."""

from __future__ import annotations

from collections.abc import Callable

from malletrain.agent.node_cgroups import NodeCgroups, agent_folder_name, agent_of
from malletrain.common.cgroups import Cgroups
from malletrain.common.processes import ProcessId


def test_a_folder_tells_whose_it_is() -> None:
    name = agent_folder_name("head:1", "n1", ProcessId(17, 99))
    assert agent_of(name, "head:1", "n1") == ProcessId(17, 99)
    assert agent_of(name, "head:1", "n2") is None
    assert agent_of(name, "head:2", "n1") is None
    for false in (name + ".1", name.removesuffix(".99"), name.replace("17", "x"), "malletrain-agent-", ""):
        assert agent_of(false, "head:1", "n1") is None


def test_without_cgroups_all_goes_on_and_it_is_said_why() -> None:
    def nowhere(_: str, say: Callable[[str], None]) -> Cgroups:
        return Cgroups(None, say, "not here")

    said: list[str] = []
    groups = NodeCgroups()
    groups.open("head:1", "n1", said.append, nowhere)
    assert groups.of("j000001", "n1") is None
    assert groups.of_standbys(7) is None
    groups.end("j000001", ["n1"])
    groups.end_standbys(7)
    groups.kill_all()
    groups.remove()
    assert said == ["workers have no cgroups: not here"]
