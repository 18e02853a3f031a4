"""Whether a job's processes on this machine do anything: by CPU time, by what they read and write, and by the GPU.

Silence of a training is no fault, but that of its processes may be. They count as idle while each of them uses next to
no CPU time, reads and writes next to nothing, and does not wait for a disk. How their main threads wait tells a
deadlock from a long sleep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from malletrain.common.processes import process_ids, read_arguments, read_text

LOOK_SECONDS = 2.0
"""Time between two looks. As long as the first process of a worker is busy, one costs three small files."""

_BUSY_SHARE = 0.10
"""Of a core, for all threads. Those of libraries wake often without work: Horovod's used 4 %, with two workers."""
_BUSY_MAIN_SHARE = 0.03
"""The same for the main thread, with the time for which it waits for a core."""
_BUSY_BYTES = 1024.0
"""Read and written in a second. Signs of life of libraries are shorter."""
_POLLS = 10.0
"""A thread that wakes more often in a second polls rather than sleeps."""
_MAX_THREADS = 256
_OURS = "malletrain.client.sidecar"
"""It reports to Monitor as long as the worker lives, whatever that does."""
_TICK = os.sysconf("SC_CLK_TCK")

_MACHINE = os.uname().machine
_FUTEX, _SLEEPS = {"x86_64": (202, ("35", "230")), "aarch64": (98, ("101", "115"))}.get(_MACHINE, (-1, ()))
"""Numbers of system calls: to wait for a lock, and to sleep."""


class Wait(IntEnum):
    """How idle processes wait. Of several places, the largest holds.

    OTHER: for a message, for a lock with a time limit, or it is not known. LOCKED: one waits for a lock without a time
    limit, and none sleeps. ASLEEP: one sleeps, and so will go on by itself.
    """

    OTHER = 1
    LOCKED = 2
    ASLEEP = 3


@dataclass(frozen=True)
class Idleness:
    """Processes that do nothing.

    Attributes:
        since: Since when, in monotonic seconds.
        wait: How they wait.
    """

    since: float
    wait: Wait = Wait.OTHER


def idleness_of_all(places: Iterable[Idleness | None]) -> Idleness | None:
    """What holds for all places together: idle if all of them are; None if there are none."""
    all_places = list(places)
    if not all_places or None in all_places:
        return None
    idle = [place for place in all_places if place is not None]
    return Idleness(max(place.since for place in idle), max(place.wait for place in idle))


@dataclass(frozen=True)
class Usage:
    """What a process has used since it began, its children that have ended included.

    Attributes:
        seconds: CPU time of all threads in seconds.
        main_seconds: CPU time of the main thread, and the time for which it waited for a core, in seconds.
        bytes: Read and written, also from and to pipes and caches.
        stuck: Whether it waits for a disk, or a file system of the network.
    """

    seconds: float = 0.0
    main_seconds: float = 0.0
    bytes: int = 0
    stuck: bool = False

    def is_busy_since(self, before: Usage, elapsed: float) -> bool:
        """Whether it has been at work.

        Args:
            before: What it had used before.
            elapsed: Time since then in seconds, above 0.
        """
        share, main = (self.seconds - before.seconds) / elapsed, (self.main_seconds - before.main_seconds) / elapsed
        rate = (self.bytes - before.bytes) / elapsed
        return self.stuck or share >= _BUSY_SHARE or main >= _BUSY_MAIN_SHARE or rate >= _BUSY_BYTES


class ActivityWatch:
    """Looks at the processes of workers, as seldom as it may. Use from one thread."""

    def __init__(self, gpu_is_busy: Callable[[Collection[int]], bool] = lambda _: False) -> None:
        """Nothing happens before `look`.

        Args:
            gpu_is_busy: Whether a GPU is at work for one of these processes. Asked where they seem idle.
        """
        self._gpu_is_busy = gpu_is_busy
        self._leaders: frozenset[int] = frozenset()
        self._before: Mapping[int, Usage] = {}
        self._looked_at = float("-inf")
        self._whole = False
        self._idle: Idleness | None = None
        self._waits: WaitLook | None = None

    def look(self, leaders: Iterable[int], now: float) -> Idleness | None:
        """Whether the workers and all that they have started are idle; None: they are not, or it is not known yet.

        Args:
            leaders: Process ids of the workers, each the leader of its process group.
            now: Monotonic seconds.
        """
        wanted = frozenset(leaders)
        if wanted != self._leaders:
            self._leaders, self._before, self._whole, self._idle = wanted, {}, False, None
        elif now - self._looked_at < LOOK_SECONDS:
            return self._idle
        if wanted:
            self._idle = self._judge(now)
        self._looked_at = now
        return self._idle

    def _judge(self, now: float) -> Idleness | None:
        elapsed = now - self._looked_at
        usages = dict(_usages(self._leaders))
        # One that is new was compared with nothing: its first look is no evidence.
        if any(pid in self._before and usages[pid].is_busy_since(self._before[pid], elapsed) for pid in usages):
            self._before, self._whole = usages, False
            return None
        was_whole, before = self._whole, self._before
        usages = dict(_usages(_tree(self._leaders)))
        self._before, self._whole = usages, True
        if not was_whole:
            return None
        if any(usages[pid].is_busy_since(before.get(pid, Usage()), elapsed) for pid in usages):
            return None
        if self._gpu_is_busy(usages.keys()):
            return None
        since = self._looked_at if self._idle is None else self._idle.since
        self._waits = WaitLook(usages, self._waits, elapsed)
        return Idleness(since, self._waits.wait)


class WaitLook:
    """How processes wait that do nothing, and what tells in the next look which of their threads poll."""

    def __init__(self, pids: Iterable[int], before: WaitLook | None = None, elapsed: float = 1.0) -> None:
        """Looks at the processes once; `wait` is the answer.

        Args:
            before: The look before; None: there was none.
            elapsed: Time since then in seconds, above 0.
        """
        self._before = {} if before is None else before.wakes
        self._elapsed = elapsed
        self.wakes: dict[str, int] = {}
        self.wait = max([self._how_it_waits(pid) for pid in pids], default=Wait.OTHER)

    def _how_it_waits(self, pid: int) -> Wait:
        asleep = [thread for thread in _threads(pid) if self._sleeps(f"{pid}/task/{thread}")]
        if asleep:
            return Wait.ASLEEP
        words = read_text(pid, "syscall").split()
        waits_for_lock = len(words) > 4 and words[0] == str(_FUTEX) and int(words[4], 16) == 0
        return Wait.LOCKED if waits_for_lock else Wait.OTHER

    def _sleeps(self, thread: str) -> bool:
        """Whether a thread sleeps, and not only for short times again and again."""
        call, counts = read_text(thread, "syscall").split(), read_text(thread, "schedstat").split()
        if len(counts) > 2:
            self.wakes[thread] = int(counts[2])
        if not call or call[0] not in _SLEEPS:
            return False
        wakes = self.wakes.get(thread, 0) - self._before.get(thread, self.wakes.get(thread, 0))
        return wakes / self._elapsed < _POLLS


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]  # noqa: PTH208 - a few small files
    except OSError:  # it has ended
        return []


def _usages(pids: Iterable[int]) -> Iterator[tuple[int, Usage]]:
    for pid in pids:
        if (usage := read_usage(pid)) is not None:
            yield pid, usage


def read_usage(pid: int) -> Usage | None:
    """What a process has used; None if it has ended."""
    fields = read_text(pid, "stat").rpartition(")")[2].split()
    if len(fields) < 15 or fields[0] in "ZXx":
        return None
    seconds, main = sum(map(int, fields[11:15])) / _TICK, read_text(pid, "schedstat").split()
    main_seconds = sum(map(int, main[:2])) / 1e9
    counts = [line.partition(": ") for line in read_text(pid, "io").splitlines()]
    moved = sum(int(count) for name, _, count in counts if name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    return Usage(seconds, main_seconds, moved, fields[0] == "D")


def _tree(leaders: Collection[int]) -> set[int]:
    """The leaders, what they have started, and the members of their groups; without what reports for them."""
    parents: dict[int, int] = {}
    pids = set(leaders)
    for pid in process_ids():
        fields = read_text(pid, "stat").rpartition(")")[2].split()
        if len(fields) > 2:
            parents[pid] = int(fields[1])
            if int(fields[2]) in leaders:
                pids.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in pids and pid not in pids}:
        pids |= more
    return {pid for pid in pids if pid in leaders or _OURS not in read_arguments(pid)[:5]}


@dataclass(frozen=True)
class IdleReport:
    """What is told of idle processes: only after a while, and then only what changes.

    Attributes:
        after: For how long they must be idle until it is told, in seconds.
        since: Since when they are, of what is told.
        seconds: For how long they had been when it was told; 0: they are at work.
        wait: How they wait; None: they are at work.
    """

    after: float
    since: float = 0.0
    seconds: float = 0.0
    wait: Wait | None = None

    def after_look(self, idle: Idleness | None, now: float) -> IdleReport:
        """The report after a look at the processes; the same one if it says what it said."""
        if idle is None or now - idle.since < self.after:
            return self if self.wait is None else IdleReport(self.after)
        if (idle.since, idle.wait) == (self.since, self.wait):
            return self
        return IdleReport(self.after, idle.since, now - idle.since, idle.wait)

    @property
    def deadlocked(self) -> bool:
        """Whether the processes wait for each other."""
        return self.wait is Wait.LOCKED
