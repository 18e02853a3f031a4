"""The connections to agents: real ones, silent ones, and none."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from malletrain.common import environment as env
from malletrain.common.activity import Wait
from malletrain.common.launch_file import AgentAddress
from malletrain.supervisor.workers.agent_links import AgentLink, AgentLinks, RemoteWorker, start_message
from malletrain.supervisor.workers.slot import Slot
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
    links.update({"n1": AgentAddress(f"127.0.0.1:{free_port()}")})
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
    links.update({"n1": AgentAddress(f"127.0.0.1:{free_port()}")})
    third = links.get("n1")
    assert third is not None
    assert links.leaving == frozenset(), "another agent is on the node"
    links.close()


def test_a_link_stays_while_a_jobmanager_of_0_1_names_no_names() -> None:
    links, named = AgentLinks(None), AgentAddress("127.0.0.1:9", "a.node.malletrain.internal")
    for told, agent in ((named, named), (AgentAddress("127.0.0.1:9"), named), (AgentAddress("127.0.0.1:8"), None)):
        links.update({"n1": told})
        link = links.get("n1")
        assert link is not None
        assert link.agent == (agent or told)
    links.update({"n1": AgentAddress("")})
    assert links.get("n1") is not None, "where it was"
    links.close()


@pytest.mark.processes
def test_what_is_asked_for_before_the_connection_stands_is_done(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sh", "-c", 'echo "$GIVEN $MALLETRAIN_NODE"; exit 3')
        assert wait_until(worker.poll, 30, "its end") == 3
        assert worker.pid
        wait_until(lambda: not worker.has_session(), 10, "the end of the group of a worker that failed")
        assert (tmp_path / "worker.log").read_text() == "value n1\n"
        fine = worker_of(link, tmp_path, "/bin/sh", "-c", "sleep 600 & exit 0")
        wait_until(lambda: fine.poll() is not None, 30, "its end")
        assert fine.poll() == 0
        assert fine.has_session(), "what it has left behind may deliver"
        fine.kill()
        wait_until(lambda: not fine.has_session(), 10, "the end of its session")
        missing = worker_of(link, tmp_path / "missing", "/bin/true")
        assert wait_until(missing.poll, 10, "the error") == 127
        link.close()
        wait_until(lambda: link.is_lost, 10, "the end of the session")


@pytest.mark.processes
def test_stops_are_told_and_what_is_left_ends_with_the_session(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sh", "-c", "trap 'exit 5' TERM; touch up; sleep 600 & wait")
        wait_until((tmp_path / "up").exists, 30, "its own code")
        worker.terminate(60)
        assert wait_until(worker.poll, 10, "its end") == 5
        stopped = worker_of(link, tmp_path, "/bin/sh", "-c", "kill -STOP $$; sleep 600")
        wait_until(stopped.is_stopped, 30, "the stop")
        os.kill(stopped.pid, signal.SIGCONT)
        wait_until(lambda: not stopped.is_stopped(), 10, "that it runs again")
        link.close()
        wait_until(lambda: stopped.poll() == -signal.SIGKILL, 10, "the end with its session")


@pytest.mark.processes
def test_workers_that_do_nothing_are_told_and_that_they_work_again(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        script = "sleep 600 & trap 'kill %1; while :; do :; done' USR1; wait; wait"
        worker = worker_of(link, tmp_path, "/bin/bash", "-c", script)
        wait_until(lambda: worker.pid, 30, "the worker")
        idle = wait_until(lambda: link.idleness, 30, "that it sleeps")
        assert idle is not None
        assert idle.wait is Wait.ASLEEP
        assert idle.since <= time.monotonic() - 4
        os.kill(worker.pid, signal.SIGUSR1)
        wait_until(lambda: link.idleness is None, 30, "that it works")
        link.close()


@pytest.mark.processes
def test_a_killed_agent_is_lost_at_once_and_its_workers_count_as_killed(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sleep", "600")
        wait_until(lambda: worker.pid, 30, "the worker")
        began = time.monotonic()
        running["n1"].process.kill()
        wait_until(lambda: link.is_lost, 10, "the loss")
        assert time.monotonic() - began < 1
        assert worker.poll() == -signal.SIGKILL
        assert not link.sweep("job"), "nobody confirms it"


@pytest.mark.processes
def test_an_agent_that_leaves_says_so_before_anything_else(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", grace=30) as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sleep", "600")
        wait_until(lambda: worker.pid, 30, "the worker")
        running["n1"].process.send_signal(signal.SIGTERM)
        wait_until(lambda: link.is_leaving, 10, "the word")
        assert worker.poll() is None
        later = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        wait_until(lambda: later.is_leaving, 10, "the word in a session that began afterwards")
        worker.kill()
        assert running["n1"].process.wait(10) == 0
        wait_until(lambda: worker.poll() is not None, 10, "the end of the worker")
        assert worker.poll() == -signal.SIGKILL


def test_an_agent_that_accepts_and_says_nothing_is_given_up_after_five_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = AgentLink(
            "n1", AgentAddress(f"127.0.0.1:{silent.getsockname()[1]}"), certificate(tmp_path, "supervisor")
        )
        began = time.monotonic()
        wait_until(lambda: link.is_lost, 20, "the loss")
        assert 4 < time.monotonic() - began < 8


@pytest.mark.processes
def test_who_is_not_an_agent_of_this_installation_gets_nothing(tmp_path: Path) -> None:
    with agents(tmp_path / "other", "n1") as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        wait_until(lambda: link.is_lost, 10, "the refusal")


@pytest.mark.parametrize("shown", [None, Path("/nonexistent/supervisor.pem")])
def test_without_a_certificate_there_is_no_connection(shown: Path | None) -> None:
    link = AgentLink("n1", AgentAddress(f"127.0.0.1:{free_port()}"), shown)
    wait_until(lambda: link.is_lost, 10, "the loss")
    link.close()


@pytest.mark.processes
def test_what_a_command_on_another_node_has_started_saves_before_the_command_ends(tmp_path: Path) -> None:
    trainer = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); time.sleep(99)"
    )
    script = f'set -e; "{sys.executable}" -S -c "{trainer}"; echo the last line'
    with agents(tmp_path, "n1") as running:
        link = AgentLink("n1", AgentAddress(running["n1"].address), certificate(tmp_path, "supervisor"))
        worker = worker_of(link, tmp_path, "/bin/sh", "-c", script)
        log = tmp_path / "worker.log"
        wait_until(lambda: log.exists() and log.read_text() == "up\n", 30, "the trainer")
        wait_until(lambda: worker.is_warm() and worker.started, 10, "that the command is known to run")
        worker.terminate(20)
        wait_until(lambda: worker.poll() is not None, 30, "its end")
        assert worker.poll() == 0
        assert log.read_text() == "up\nthe last line\n"
        link.close()
