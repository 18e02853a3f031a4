"""Whether processes do anything, and how they wait if they don't: seen of real ones."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from malletrain.common import activity
from malletrain.common.activity import (
    LOOK_SECONDS,
    ActivityWatch,
    Idleness,
    IdleReport,
    Usage,
    Wait,
    WaitLook,
    idleness_of_all,
    read_usage,
)
from malletrain.common.processes import read_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

LOCKED = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
ASLEEP = "import time; time.sleep(600)"
PATIENT = "import queue; queue.Queue().get(timeout=600)"
POLLING = f"""
import threading, time
def poll():
    while True:
        time.sleep(0.005)
threading.Thread(target=poll, daemon=True).start()
{LOCKED}
"""
BUSY = "while True: pass"
WRITING = "import time\nfile = open('/dev/null', 'wb', 0)\nwhile True:\n file.write(bytes(4000)); time.sleep(0.2)"


@contextmanager
def process(script: str, *, beneath_a_shell: bool = False) -> Iterator[int]:
    command = [sys.executable, "-c", script]
    if beneath_a_shell:
        command = ["sh", "-c", '"$@"; true', "sh", *command]
    with subprocess.Popen(command, start_new_session=True) as started:
        try:
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)


def looks(watch: ActivityWatch, *pids: int) -> Iterator[Idleness | None]:
    """Looks at processes at a clock of which each is as long after the one before as it must be."""
    for number in itertools.count():
        yield watch.look(pids, LOOK_SECONDS * number)


def rests(pid: int) -> bool:
    before = read_usage(pid)
    time.sleep(0.05)
    return before is not None and before == read_usage(pid) and read_text(pid, "stat").rpartition(") ")[2][0] == "S"


@pytest.mark.parametrize(
    ("script", "wait"),
    [(LOCKED, Wait.LOCKED), (ASLEEP, Wait.ASLEEP), (PATIENT, Wait.OTHER), (POLLING, Wait.LOCKED)],
)
@pytest.mark.parametrize("beneath_a_shell", [False, True])
def test_how_idle_processes_wait(script: str, wait: Wait, beneath_a_shell: bool) -> None:
    with process(script, beneath_a_shell=beneath_a_shell) as pid:
        watch = ActivityWatch()
        found = looks(watch, pid)
        idle = wait_until(lambda: (seen := next(found)) is not None and seen.wait is wait and seen, 20, "idleness")
        assert isinstance(idle, Idleness)


@pytest.mark.parametrize("script", [BUSY, WRITING])
@pytest.mark.parametrize("beneath_a_shell", [False, True])
def test_processes_at_work_are_never_idle(script: str, beneath_a_shell: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "LOOK_SECONDS", 0.25)
    with process(script, beneath_a_shell=beneath_a_shell) as pid:
        wait_until(lambda: not rests(pid) or beneath_a_shell, 20, "work")
        watch, until = ActivityWatch(), time.monotonic() + 1.5
        while (now := time.monotonic()) < until:
            assert watch.look([pid], now) is None
            time.sleep(0.05)


def test_a_gpu_at_work_counts() -> None:
    with process(LOCKED) as pid:
        wait_until(lambda: rests(pid), 20, "rest")
        asked: list[set[int]] = []

        def busy(pids: object) -> bool:
            asked.append(set(pids))  # type: ignore[call-overload]
            return True

        found = looks(ActivityWatch(busy), pid)
        assert [next(found) for _ in range(5)] == [None] * 5
        assert asked
        assert asked[-1] == {pid}


def test_idleness_begins_with_the_last_look_at_work_and_other_workers_are_others() -> None:
    with process(LOCKED) as first, process(ASLEEP) as second:
        wait_until(lambda: rests(first) and rests(second), 20, "rest")
        watch = ActivityWatch()
        assert watch.look([first], 1.0) is None, "there is nothing to compare with"
        assert watch.look([first], 4.0) == Idleness(1.0, Wait.LOCKED)
        assert watch.look([first], 4.5) == Idleness(1.0, Wait.LOCKED), "too soon for another look"
        assert watch.look([first], 60.0) == Idleness(1.0, Wait.LOCKED)
        assert watch.look([first, second], 61.0) is None
        assert watch.look([first, second], 64.0) == Idleness(61.0, Wait.ASLEEP)
        assert watch.look([], 70.0) is None


def test_no_process_waits_in_no_way() -> None:
    assert WaitLook([2**22 + 1]).wait is Wait.OTHER
    assert read_usage(2**22 + 1) is None


def test_waiting_for_a_disk_or_a_core_is_work() -> None:
    assert Usage(stuck=True).is_busy_since(Usage(), 2.0)
    assert Usage(seconds=0.2).is_busy_since(Usage(), 2.0)
    assert not Usage(seconds=0.1).is_busy_since(Usage(), 2.0)
    assert Usage(main_seconds=0.1).is_busy_since(Usage(), 2.0)
    assert not Usage(main_seconds=0.04).is_busy_since(Usage(), 2.0)
    assert Usage(bytes=3000).is_busy_since(Usage(), 2.0)
    assert not Usage(bytes=1000).is_busy_since(Usage(), 2.0)


def test_a_job_is_idle_where_all_its_places_are() -> None:
    one, two = Idleness(5.0, Wait.LOCKED), Idleness(9.0, Wait.OTHER)
    assert idleness_of_all([one, two]) == Idleness(9.0, Wait.LOCKED)
    assert idleness_of_all([one, Idleness(1.0, Wait.ASLEEP)]) == Idleness(5.0, Wait.ASLEEP)
    assert idleness_of_all([one, None]) is None
    assert idleness_of_all([]) is None


def test_a_report_says_only_what_is_new() -> None:
    report = IdleReport(after=10.0)
    assert report.after_look(Idleness(100.0, Wait.LOCKED), 105.0) is report
    told = report.after_look(Idleness(100.0, Wait.LOCKED), 112.0)
    assert (told.seconds, told.deadlocked) == (12.0, True)
    assert told.after_look(Idleness(100.0, Wait.LOCKED), 150.0) is told
    other = told.after_look(Idleness(100.0, Wait.ASLEEP), 150.0)
    assert (other.seconds, other.deadlocked) == (50.0, False)
    assert other.after_look(None, 151.0) == report
