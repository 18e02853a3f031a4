"""The connections to agents: real ones, silent ones, and none."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from malletrain.common import environment as env
from malletrain.supervisor.agent_links import AgentLink, AgentLinks, start_message
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.remote_worker import RemoteWorker
from tests.agent.running import agents
from tests.support.certificates import certificate
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SLOT = Slot("n1", 0)


def worker_of(link: AgentLink, folder: Path, *command: str) -> RemoteWorker:
    """A worker whose own code runs."""
    own = {env.JOB_ID: f"job of {folder.name}", env.JOB_DIR: str(folder)}
    worker = link.start(SLOT, start_message(SLOT, command, str(folder), own, folder / "worker.log", warm=False))
    worker.go({"GIVEN": "value"})
    return worker


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


def test_what_is_asked_for_before_the_connection_stands_is_done(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", running["n1"].address, certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sh", "-c", 'echo "$GIVEN $MALLETRAIN_NODE"; exit 3')
        assert wait_until(worker.poll, 30, "its end") == 3
        assert worker.pid
        assert not worker.has_group(), "the agent kills the group of a worker that failed"
        assert (tmp_path / "worker.log").read_text() == "value n1\n"
        fine = worker_of(link, tmp_path, "/bin/sh", "-c", "sleep 600 & exit 0")
        wait_until(lambda: fine.poll() is not None, 30, "its end")
        assert fine.poll() == 0
        assert fine.has_group(), "what it has left behind may deliver"
        fine.kill()
        wait_until(lambda: not fine.has_group(), 10, "the end of its group")
        missing = worker_of(link, tmp_path / "missing", "/bin/true")
        assert wait_until(missing.poll, 10, "the error") == 127
        link.close()
        wait_until(lambda: link.is_lost, 10, "the end of the session")


def test_stops_are_told_and_what_is_left_ends_with_the_session(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", running["n1"].address, certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sh", "-c", "trap 'exit 5' TERM; touch up; sleep 600 & wait")
        wait_until((tmp_path / "up").exists, 30, "its own code")
        worker.terminate()
        assert wait_until(worker.poll, 10, "its end") == 5
        stopped = worker_of(link, tmp_path, "/bin/sh", "-c", "kill -STOP $$; sleep 600")
        wait_until(stopped.is_stopped, 30, "the stop")
        os.kill(stopped.pid, signal.SIGCONT)
        wait_until(lambda: not stopped.is_stopped(), 10, "that it runs again")
        link.close()
        wait_until(lambda: stopped.poll() == -signal.SIGKILL, 10, "the end with its session")


def test_a_killed_agent_is_lost_at_once_and_its_workers_count_as_killed(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", running["n1"].address, certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sleep", "600")
        wait_until(lambda: worker.pid, 30, "the worker")
        began = time.monotonic()
        running["n1"].process.kill()
        wait_until(lambda: link.is_lost, 10, "the loss")
        assert time.monotonic() - began < 1
        assert worker.poll() == -signal.SIGKILL
        assert not link.sweep("job"), "nobody confirms it"


def test_an_agent_that_leaves_says_so_before_anything_else(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", grace=30) as running:
        link = AgentLink("n1", running["n1"].address, certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sleep", "600")
        wait_until(lambda: worker.pid, 30, "the worker")
        running["n1"].process.send_signal(signal.SIGTERM)
        wait_until(lambda: link.is_leaving, 10, "the word")
        assert worker.poll() is None
        later = AgentLink("n1", running["n1"].address, certificate(tmp_path, "supervisor"))
        wait_until(lambda: later.is_leaving, 10, "the word in a session that began afterwards")
        worker.kill()
        assert running["n1"].process.wait(10) == 0
        wait_until(lambda: worker.poll() is not None, 10, "the end of the worker")
        assert worker.poll() == -signal.SIGKILL


def test_an_agent_that_accepts_and_says_nothing_is_given_up_after_five_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = AgentLink("n1", f"127.0.0.1:{silent.getsockname()[1]}", certificate(tmp_path, "supervisor"))
        began = time.monotonic()
        wait_until(lambda: link.is_lost, 20, "the loss")
        assert 4 < time.monotonic() - began < 8


def test_who_is_not_an_agent_of_this_installation_gets_nothing(tmp_path: Path) -> None:
    with agents(tmp_path / "other", "n1") as running:
        link = AgentLink("n1", running["n1"].address, certificate(tmp_path, "supervisor"))
        wait_until(lambda: link.is_lost, 10, "the refusal")


@pytest.mark.parametrize("shown", [None, Path("/nonexistent/supervisor.pem")])
def test_without_a_certificate_there_is_no_connection(shown: Path | None) -> None:
    link = AgentLink("n1", f"127.0.0.1:{free_port()}", shown)
    wait_until(lambda: link.is_lost, 10, "the loss")
    link.close()
