"""Processes are told apart by process id and start time, and found by their environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from malletrain.common.processes import (
    ProcessId,
    find_processes,
    identify,
    kill_processes,
    process_ids,
    read_arguments,
    read_cpu_seconds,
    read_descriptors,
    read_environment,
    read_status,
    this_process,
)
from tests.support.waiting import wait_until

_NOBODY = 2**22 + 1
"""Above the highest process id of any kernel."""


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={"PATH": os.defpath, **environment})


def end(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def test_a_process_is_alive_until_it_ends_even_if_nobody_reaps_it() -> None:
    child = sleeper()
    found = identify(child.pid)
    assert found is not None
    assert found.alive()
    assert found.kill()
    wait_until(lambda: not found.alive(), 10, "the end of the child")
    status = read_status(child.pid)
    assert status is not None
    assert (status.state, status.ended, status.parent) == ("Z", True, os.getpid())
    assert not found.kill()
    child.wait()
    assert read_status(child.pid) is None
    assert identify(child.pid) is None
    assert not found.kill()


def test_a_signal_goes_to_that_process_only() -> None:
    child = sleeper()
    identity = identify(child.pid)
    assert identity is not None
    other = ProcessId(child.pid, identity.start_time + 1)
    assert not other.alive()
    assert not other.kill()
    assert identity.alive()
    assert identity.kill(signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM


def test_a_stopped_process_shows_it() -> None:
    child = sleeper()
    child.send_signal(signal.SIGSTOP)

    def state() -> str:
        status = read_status(child.pid)
        return "" if status is None else status.state

    wait_until(lambda: state() == "T", 10, "the stop")
    end(child)


def test_a_name_with_spaces_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    name = tmp_path / ") R 1 (x"
    name.symlink_to("/bin/sleep")
    child = subprocess.Popen([name, "60"])
    status = read_status(child.pid)
    assert status is not None
    assert status.parent == os.getpid()
    end(child)


def test_nobody_has_no_status_environment_or_arguments() -> None:
    assert read_status(_NOBODY) is None
    assert identify(_NOBODY) is None
    assert read_environment(_NOBODY) == {}
    assert read_arguments(_NOBODY) == []
    assert not ProcessId(_NOBODY, 1).kill()


def test_this_process_is_known() -> None:
    assert this_process() == identify(os.getpid())
    assert os.getpid() in process_ids()
    assert read_arguments(os.getpid()) == sys.orig_argv


def test_environments_are_read_as_the_process_got_them() -> None:
    child = sleeper(MARK="a=b", EMPTY="", ODD="\udcff")
    wait_until(lambda: read_arguments(child.pid) == ["sleep", "60"], 10, "its exec")
    assert read_environment(child.pid) == {"PATH": os.defpath, "MARK": "a=b", "EMPTY": "", "ODD": "\udcff"}
    end(child)


def test_descriptors_are_listed() -> None:
    with socket.socket() as ours:
        inode = os.fstat(ours.fileno()).st_ino
        assert (ours.fileno(), f"socket:[{inode}]") in list(read_descriptors(os.getpid()))


def test_processes_are_found_and_killed_by_their_environment() -> None:
    mine, other = sleeper(MARK="mine", N="1"), sleeper(MARK="other")
    wait_until(lambda: all(read_environment(each.pid).get("MARK") for each in (mine, other)), 10, "their exec")
    found = list(find_processes(lambda environment: environment.get("MARK") == "mine"))
    assert [(process.id.pid, process.environment["N"]) for process in found] == [(mine.pid, "1")]
    assert kill_processes(lambda environment: environment.get("MARK") == "mine") == [found[0].id]
    assert mine.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    assert kill_processes(lambda environment: environment.get("MARK") == "mine") == []
    end(other)


def test_the_calling_process_is_not_found() -> None:
    own = read_environment(os.getpid())
    assert os.getpid() not in [process.id.pid for process in find_processes(lambda found: found == own)]


def test_a_thread_is_no_process_of_a_user() -> None:
    begun, end, found = threading.Event(), threading.Event(), []

    def run() -> None:
        found.append(threading.get_native_id())
        begun.set()
        end.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(10)
    status = read_status(found[0])
    assert status is not None
    thread_id = ProcessId(found[0], status.start_time, os.getuid())
    assert not thread_id.alive()
    assert not thread_id.kill(signal.SIGCONT)
    end.set()
    thread.join()


def test_a_process_of_another_user_does_not_count_as_the_users() -> None:
    own = this_process()
    assert ProcessId(own.pid, own.start_time, os.getuid()).alive()
    assert not ProcessId(own.pid, own.start_time, os.getuid() + 1).alive()
    assert not ProcessId(own.pid, own.start_time, os.getuid() + 1).kill()


def test_cpu_time_is_that_of_the_process() -> None:
    before, used = read_cpu_seconds(os.getpid()), time.process_time()
    assert before is not None
    assert before == pytest.approx(used, abs=0.1)
    assert read_cpu_seconds(0) is None
    assert read_cpu_seconds(_NOBODY) is None
