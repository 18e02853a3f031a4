"""Processes by identity: a pid alone may be somebody else's by now, a pid with its start time is not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from malletrain.job_manager.launchers.base import ProcessesLeftError

_PROC = Path("/proc")
_SWEEP_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class ProcessId:
    """A process for certain.

    Attributes:
        pid: Its number.
        start_time: When it started, in clock ticks since the boot (field 22 of /proc/PID/stat).
    """

    pid: int
    start_time: int

    def alive(self) -> bool:
        """Whether it runs; a process that waits to be reaped does not."""
        return self.start_time == start_time_of(self.pid)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, to this process and no other; nothing happens where it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)

    async def wait(self) -> None:
        """Wait until it has ended. It need not be a child of this process."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            if self.alive():
                loop.add_reader(descriptor, ended.set)
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


async def unless_gone(process: ProcessId, call: Coroutine[None, None, bool]) -> bool:
    """Result of a call, or False as soon as the process that should answer has ended."""
    calling, ending = asyncio.ensure_future(call), asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({calling, ending}, return_when=asyncio.FIRST_COMPLETED)
        return calling.done() and calling.result()
    finally:
        calling.cancel()
        ending.cancel()
        await asyncio.gather(calling, ending, return_exceptions=True)


def start_time_of(pid: int) -> int | None:
    """Start time of a live process in clock ticks since the boot; None where there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself contain spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Found:
    """A process of ours, with its environment."""

    process: ProcessId
    environment: Mapping[str, str]


def find(wanted: Callable[[Mapping[str, str]], bool]) -> Iterator[Found]:
    """Live processes of this user whose environment (as they were started) is wanted, this process apart."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        environment = _environment_of(entry)
        if environment and wanted(environment):
            started = start_time_of(int(entry.name))
            if started is not None:
                yield Found(ProcessId(int(entry.name), started), environment)


async def sweep(wanted: Callable[[Mapping[str, str]], bool], patience_seconds: float = 5.0) -> int:
    """Kill processes until none is left whose environment is wanted; how many there were.

    Raises:
        ProcessesLeftError: some do not go.
    """
    killed: set[ProcessId] = set()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    while found := [entry.process for entry in find(wanted)]:
        if loop.time() > deadline:
            raise ProcessesLeftError(f"still there: {', '.join(str(process.pid) for process in found)}")
        for process in found:
            process.kill()
        killed.update(found)
        await asyncio.sleep(_SWEEP_PAUSE_SECONDS)
    return len(killed)


def _environment_of(entry: Path) -> dict[str, str]:
    try:
        raw = (entry / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (word.split("=", 1) for word in raw.decode(errors="surrogateescape").split("\0") if "=" in word)
    return dict(pairs)
