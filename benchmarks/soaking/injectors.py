"""Faults are done to the system by one small class each."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from benchmarks.soaking.fault_plan import Fault, FaultKind
from benchmarks.soaking.machine import SmallDisk, SteppedClock
from benchmarks.soaking.observations import FaultDone, Observations
from benchmarks.soaking.sampling import Installation
from benchmarks.soaking.scheduler import StandInSchedulers
from malletrain.common.processes import ProcessId, identify


class Injector(Protocol):
    """Does one kind of fault."""

    def begin(self, fault: Fault) -> str:
        """Do it; what was hit, or empty if there was nothing to hit."""

    def end(self, fault: Fault) -> None:
        """Undo it, where it lasts."""


class Victims(Protocol):
    """Tells which processes a fault may hit now, by name."""

    def __call__(self, fault: Fault) -> Mapping[str, ProcessId]:
        """The processes."""


def victims(installation: Installation, schedulers: StandInSchedulers) -> dict[FaultKind, Victims]:
    """What the faults of processes may hit."""

    def services(fault: Fault) -> dict[str, ProcessId]:
        found = {name: identify(process.pid) for name, process in installation.services().items()}
        return {name: process for name, process in found.items() if process and name == fault.service}

    def supervisors(fault: Fault) -> dict[str, ProcessId]:
        del fault
        return installation.supervisors()

    def agents(fault: Fault) -> dict[str, ProcessId]:
        del fault
        found = {node: identify(pid) for node, pid in schedulers.agents().items()}
        return {node: process for node, process in found.items() if process}

    return {
        FaultKind.KILL_SERVICE: services,
        FaultKind.STOP_SERVICE: services,
        FaultKind.KILL_SUPERVISOR: supervisors,
        FaultKind.STOP_SUPERVISOR: supervisors,
        FaultKind.KILL_AGENT: agents,
        FaultKind.STOP_AGENT: agents,
    }


def choose(found: Mapping[str, ProcessId], choice: float) -> str:
    """The victim's name by a number from 0 to 1; empty if there is none."""
    names = sorted(found)
    return names[min(int(choice * len(names)), len(names) - 1)] if names else ""


@dataclass
class KillProcess:
    """kill -9."""

    victims: Victims

    def begin(self, fault: Fault) -> str:
        found = self.victims(fault)
        name = choose(found, fault.choice)
        return name if name and found[name].kill() else ""

    def end(self, fault: Fault) -> None:
        del fault


class StopProcess:
    """SIGSTOP, and SIGCONT later."""

    def __init__(self, victims: Victims) -> None:
        self._victims = victims
        self._stopped: dict[Fault, ProcessId] = {}

    def begin(self, fault: Fault) -> str:
        found = self._victims(fault)
        name = choose(found, fault.choice)
        if name:
            self._stopped[fault] = found[name]
            _signal(found[name], signal.SIGSTOP)
        return name

    def end(self, fault: Fault) -> None:
        if process := self._stopped.pop(fault, None):
            _signal(process, signal.SIGCONT)


def _signal(process: ProcessId, number: signal.Signals) -> None:
    if identify(process.pid) == process:
        with suppress(ProcessLookupError):  # it has ended in this moment
            os.kill(process.pid, number)


@dataclass
class FillDisk:
    """Not a byte is free where the services keep their state, logs and jobs' folders."""

    disk: SmallDisk

    def begin(self, fault: Fault) -> str:
        del fault
        self.disk.fill()
        return "state folder"

    def end(self, fault: Fault) -> None:
        del fault
        self.disk.empty()


@dataclass
class SlowDownDisk:
    """Each write there waits."""

    disk: SmallDisk

    def begin(self, fault: Fault) -> str:
        del fault
        self.disk.slow_down()
        return "state folder"

    def end(self, fault: Fault) -> None:
        del fault
        self.disk.speed_up()


@dataclass
class StepClock:
    """The wall clock of all processes jumps."""

    clock: SteppedClock

    def begin(self, fault: Fault) -> str:
        self.clock.step(fault.offset_s)
        return f"{fault.offset_s:+.0f} s"

    def end(self, fault: Fault) -> None:
        del fault


@dataclass
class ConfuseScheduler:
    """Both schedulers answer as they should not, or not at all."""

    schedulers: StandInSchedulers

    def begin(self, fault: Fault) -> str:
        self.schedulers.begin(fault.kind)
        return "schedulers"

    def end(self, fault: Fault) -> None:
        self.schedulers.end(fault.kind)


def make_injectors(
    installation: Installation,
    schedulers: StandInSchedulers,
    disk: SmallDisk | str,
    clock: SteppedClock | str,
) -> tuple[dict[FaultKind, Injector], dict[FaultKind, str]]:
    """The injectors, and why there is none for the others."""
    found: dict[FaultKind, Injector] = {}
    absent: dict[FaultKind, str] = {}
    for kind, of in victims(installation, schedulers).items():
        kills = kind in (FaultKind.KILL_SERVICE, FaultKind.KILL_SUPERVISOR, FaultKind.KILL_AGENT)
        found[kind] = KillProcess(of) if kills else StopProcess(of)
    for kind in (FaultKind.SCHEDULER_GARBAGE, FaultKind.SCHEDULER_SILENT, FaultKind.SCHEDULER_REFUSES):
        found[kind] = ConfuseScheduler(schedulers)
    if isinstance(disk, str):
        absent |= {FaultKind.DISK_FULL: disk, FaultKind.SLOW_DISK: disk}
    else:
        found |= {FaultKind.DISK_FULL: FillDisk(disk), FaultKind.SLOW_DISK: SlowDownDisk(disk)}
    if isinstance(clock, str):
        absent[FaultKind.CLOCK_STEP] = clock
    else:
        found[FaultKind.CLOCK_STEP] = StepClock(clock)
    return found, absent


def inject(
    faults: tuple[Fault, ...],
    injectors: Mapping[FaultKind, Injector],
    seen: Observations,
    now: Callable[[], float],
    ending: threading.Event,
) -> None:
    """Do all faults when they are due; at `ending`, or an error, what lasts is undone at once."""
    events = [(fault.at_s, 1, fault) for fault in faults]
    events += [(fault.at_s + fault.lasts_s, 0, fault) for fault in faults if fault.lasts_s]
    open_faults: dict[Fault, tuple[float, str]] = {}

    def close(fault: Fault) -> None:
        begin, victim = open_faults.pop(fault)
        injectors[fault.kind].end(fault)
        seen.faults.append(FaultDone(begin, now(), fault.name, victim))

    try:
        for at, begins, fault in sorted(events, key=lambda event: event[:2]):
            if ending.wait(max(0.0, at - now())):
                return
            if begins:
                open_faults[fault] = (now(), injectors[fault.kind].begin(fault))
            if fault in open_faults and not (begins and fault.lasts_s):
                close(fault)
    finally:
        for fault in list(open_faults):
            close(fault)
