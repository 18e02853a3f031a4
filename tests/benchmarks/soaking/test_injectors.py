from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks.soaking.fault_plan import Fault, FaultKind
from benchmarks.soaking.injectors import KillProcess, StopProcess, choose, inject
from benchmarks.soaking.machine import SmallDisk, SteppedClock, small_disk, stepped_clock
from benchmarks.soaking.observations import Observations
from malletrain.common.processes import ProcessId, identify
from tests.support.waiting import wait_until


class Notes:
    """Notes what is begun and ended; it may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.lines: list[str] = []
        self._fails = fails

    def begin(self, fault: Fault) -> str:
        if self._fails:
            raise OSError("no")
        self.lines.append(f"begin {fault.at_s:g}")
        return "victim"

    def end(self, fault: Fault) -> None:
        self.lines.append(f"end {fault.at_s:g}")


class Passing(threading.Event):
    """Waits without waiting."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_faults_come_in_order_and_what_lasts_ends() -> None:
    notes, seen = Notes(), Observations()
    faults = (
        Fault(1.0, FaultKind.DISK_FULL, 5.0),
        Fault(2.0, FaultKind.CLOCK_STEP),
        Fault(3.0, FaultKind.SLOW_DISK, 1.0),
    )
    inject(faults, dict.fromkeys(FaultKind, notes), seen, lambda: 0.0, Passing())
    assert notes.lines == ["begin 1", "begin 2", "end 2", "begin 3", "end 3", "end 1"]
    assert [fault.kind for fault in seen.faults] == ["step of the clock", "slow disk", "disk full"]
    assert all(fault.victim == "victim" for fault in seen.faults)


def test_what_lasts_is_undone_where_another_fault_fails() -> None:
    notes = Notes()
    faults = (Fault(1.0, FaultKind.DISK_FULL, 5.0), Fault(2.0, FaultKind.CLOCK_STEP))
    injectors = {FaultKind.DISK_FULL: notes, FaultKind.CLOCK_STEP: Notes(fails=True)}
    with pytest.raises(OSError, match="no"):
        inject(faults, injectors, Observations(), lambda: 0.0, Passing())
    assert notes.lines == ["begin 1", "end 1"]


def test_nothing_begins_after_the_end() -> None:
    notes, ending = Notes(), Passing()
    ending.set()
    inject((Fault(1.0, FaultKind.DISK_FULL, 5.0),), {FaultKind.DISK_FULL: notes}, Observations(), lambda: 0.0, ending)
    assert notes.lines == []


def test_a_victim_is_chosen_among_those_that_are_there() -> None:
    found = {"a": ProcessId(1, 1), "b": ProcessId(2, 1)}
    assert [choose(found, choice) for choice in (0.0, 0.49, 0.5, 1.0)] == ["a", "a", "b", "b"]
    assert choose({}, 0.5) == ""


def test_processes_are_stopped_and_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = identify(process.pid)
        assert identity is not None

        def state() -> str:
            return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

        stop, fault = StopProcess(lambda _: {"x": identity}), Fault(1.0, FaultKind.STOP_SERVICE, 1.0)
        assert stop.begin(fault) == "x"
        wait_until(lambda: state() == "T")
        stop.end(fault)
        wait_until(lambda: state() == "S")
        assert KillProcess(lambda _: {"x": identity}).begin(Fault(1.0, FaultKind.KILL_SERVICE)) == "x"
        assert process.wait(10) == -9
    assert KillProcess(lambda _: {}).begin(Fault(1.0, FaultKind.KILL_SERVICE)) == ""


def test_only_the_wall_clock_is_stepped(tmp_path: Path) -> None:
    clock = stepped_clock(tmp_path)
    if not isinstance(clock, SteppedClock):
        pytest.skip(clock)
    clock.step(-3600.0)
    program = "import time; print(time.time(), time.monotonic()); time.sleep(0.01)"
    words = ["python3", "-c", program]
    printed = subprocess.run(words, env={**os.environ, **clock.environment}, capture_output=True, text=True, check=True)
    plain = subprocess.run(words, capture_output=True, text=True, check=True)
    (wall, steady), (plain_wall, plain_steady) = (map(float, done.stdout.split()) for done in (printed, plain))
    assert plain_wall - wall == pytest.approx(3600.0, abs=60.0)
    assert plain_steady - steady == pytest.approx(0.0, abs=60.0)


def test_a_small_disk_is_filled_and_freed(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        if not isinstance(disk, SmallDisk):
            pytest.skip(disk)
        file = disk.folder / "file"
        disk.fill()
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            file.write_bytes(b"x" * 5000)
        disk.empty()
        with pytest.raises(OSError, match="No space left"):
            file.write_bytes(b"x" * 5000)
        disk.empty()
        file.write_bytes(b"x" * 5000)
        disk.slow_down()
        disk.speed_up()
        file.write_bytes(b"y")
