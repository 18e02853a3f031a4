"""The order of admission: which jobs of the queue take part in plans, as many as there are places (MalleTrain, §3.2).

First come, first served. With fair share and several owners, a free place goes to the owner who has the fewest jobs in
plans; among equals to the one who has used less lately, and then to the job that came first. An owner may have a limit
of its own, and then does not hold up the others. Pure.

Where jobs ask for burst buffer, of the quota that the operator grants, two things are scarce: places and that. First it
is decided who gets burst buffer, then places are given in the order of the queue to these jobs and to those that ask
for none. So a job that waits for burst buffer holds up nobody who asks for none, and nobody who asks for none is passed
over.

Burst buffer is given first come, first served, or to a selection of the jobs at the front: the window (Fan et al.,
"Scheduling Beyond CPUs for HPC", HPDC 2019, §3, with places for nodes). A job of the window that was passed over too
often comes first: it gets burst buffer as soon as that suffices, and until then nobody else does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeVar

from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest, SelectionProblem

_T = TypeVar("_T")


def first_in_line(queued: Iterable[_T], taken: int, places: int) -> list[_T]:
    """The jobs that are admitted next: the first of the queue, as many as there are free places.

    Args:
        queued: The queue, first come first.
        taken: How many are admitted already.
        places: How many may be admitted at once.
    """
    return list(islice(queued, max(0, places - taken)))


@dataclass(frozen=True)
class Places:
    """How many jobs may be admitted at once.

    Attributes:
        all: Of all owners.
        per_owner: Of one owner; 0: as many as of all.
    """

    all: int
    per_owner: int = 0


def next_in_line(
    queued: Sequence[_T],
    owner_of: Callable[[_T], str],
    taken: Mapping[str, int],
    places: Places,
    uses: Mapping[str, float] | None,
) -> list[_T]:
    """The jobs that are admitted next.

    Args:
        queued: The queue, first come first.
        owner_of: Owner of a job.
        taken: How many jobs of each owner are admitted already.
        places: How many may be admitted at once.
        uses: Decayed use of each owner, for fair share; None: first come, first served.
    """
    free = places.all - sum(taken.values())
    if free <= 0 or not queued:
        return []
    if uses is None and not places.per_owner:
        return first_in_line(queued, 0, free)
    lines: dict[str, deque[tuple[int, _T]]] = {}
    for number, job in enumerate(queued):
        lines.setdefault(owner_of(job), deque()).append((number, job))
    counts = Counter(taken)

    def rank(owner: str) -> tuple[int, float, int]:
        number = lines[owner][0][0]
        return (0, 0.0, number) if uses is None else (counts[owner], uses.get(owner, 0.0), number)

    def may_have_more(owner: str) -> bool:
        return not places.per_owner or counts[owner] < places.per_owner

    ready = [(rank(owner), owner) for owner in lines if may_have_more(owner)]
    heapify(ready)
    admitted: list[_T] = []
    while ready and free > len(admitted):
        _, owner = heappop(ready)
        admitted.append(lines[owner].popleft()[1])
        counts[owner] += 1
        if lines[owner] and may_have_more(owner):
            heappush(ready, (rank(owner), owner))
    return admitted


MAX_WINDOW = 32
"""The exact selection takes 20 ms then, and twice as long with every second job more."""

MAX_BURST_BUFFER_GB = 10**9
"""The largest quota: an exabyte."""
MAX_PLACES = 10**6
"""Most places with a window. Shares of so many places and of the largest quota can be compared in 64 bits."""


class AdmissionRule(StrEnum):
    """How burst buffer is given. FIFO: first come, first served. WINDOW: to a selection of the first jobs."""

    FIFO = "fifo"
    WINDOW = "window"


@dataclass(frozen=True)
class BurstBufferPolicy:
    """How burst buffer is given to jobs.

    Attributes:
        quota_gb: What the operator grants, in GB.
        rule: Who gets it.
        window: Jobs of the window.
        starvation_bound: How many times a job of the window may be passed over.
    """

    quota_gb: int = 0
    rule: AdmissionRule = AdmissionRule.FIFO
    window: int = 20
    starvation_bound: int = 50

    @property
    def looks_at(self) -> int:
        """How many jobs are looked at together. First come, first served is a window of one job."""
        return self.window if self.rule is AdmissionRule.WINDOW else 1

    def comes_first(self, job: AdmissionCandidate) -> bool:
        """Whether a job has been passed over as often as it may be."""
        return self.rule is AdmissionRule.WINDOW and job.passed_over >= self.starvation_bound


@dataclass(frozen=True, slots=True)
class AdmissionCandidate:
    """A job that waits for admission.

    Attributes:
        burst_buffer_gb: What it asks for, in GB.
        passed_over: How many times it was passed over.
    """

    owner: str
    burst_buffer_gb: int = 0
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class AdmissionPass:
    """What one pass decides; jobs as positions in the queue.

    Attributes:
        admitted: Who is admitted, in the order in which places are given.
        looked_at: The jobs that were looked at for burst buffer, in their order.
        held_back: Those of them that got none.
        passed_over: Those of these that were passed over: a job behind them that asks for burst buffer was admitted.
    """

    admitted: tuple[int, ...] = ()
    looked_at: tuple[int, ...] = ()
    held_back: tuple[int, ...] = ()
    passed_over: tuple[int, ...] = ()


@dataclass(frozen=True)
class AdmissionQueue:
    """The queue before a pass.

    Attributes:
        jobs: Jobs that wait, first come first.
        taken: How many jobs of each owner are admitted already.
        places: How many may be admitted at once.
        uses: Decayed use of each owner, for fair share; None: first come, first served.
        held_gb: Burst buffer that the admitted jobs hold.
    """

    jobs: Sequence[AdmissionCandidate]
    taken: Mapping[str, int]
    places: Places
    uses: Mapping[str, float] | None = None
    held_gb: int = 0

    @property
    def free_places(self) -> int:
        """Places that are left."""
        return max(0, self.places.all - sum(self.taken.values()))

    def in_line(self, positions: Sequence[int], places: Places | None = None) -> list[int]:
        """Which of these jobs would be admitted, if there were only they."""
        return next_in_line(positions, self._owner, self.taken, places or self.places, self.uses)

    def may_have_more(self, owner: str) -> bool:
        """Whether an owner has fewer jobs than one owner may have."""
        return not self.places.per_owner or self.taken.get(owner, 0) < self.places.per_owner

    def _owner(self, position: int) -> str:
        return self.jobs[position].owner


def admission_pass(queue: AdmissionQueue, policy: BurstBufferPolicy) -> AdmissionPass:
    """Decide who is admitted now.

    Without requests these are the same jobs in the same order as `next_in_line` gives; with FIFO, so they are where all
    requests fit. Jobs that ask for more than the quota are left alone.
    """
    if not queue.free_places:
        return AdmissionPass()
    plain = [position for position, job in enumerate(queue.jobs) if not job.burst_buffer_gb]
    if len(plain) == len(queue.jobs):
        return AdmissionPass(tuple(queue.in_line(plain)))
    looked_at, chosen = _give_burst_buffer(queue, policy, _within_reach(queue, policy, plain))
    admitted = queue.in_line(sorted([*plain, *chosen]))
    behind = max((looked_at.index(position) for position in admitted if position in chosen), default=0)
    held_back = [position for position in looked_at if position not in chosen]
    passed_over = [position for position in looked_at[:behind] if position not in chosen]
    return AdmissionPass(tuple(admitted), tuple(looked_at), tuple(held_back), tuple(passed_over))


def _within_reach(queue: AdmissionQueue, policy: BurstBufferPolicy, plain: Sequence[int]) -> Iterator[int]:
    """Jobs that ask for burst buffer, in order, for which jobs that ask for none leave a place."""
    foremost = _foremost(queue, plain)
    asking = [position for position, job in enumerate(queue.jobs) if 0 < job.burst_buffer_gb <= policy.quota_gb]
    within_reach = {owner for position in asking if queue.may_have_more(owner := queue.jobs[position].owner)}
    for position in _in_order(queue, policy, asking) if within_reach else ():
        owner = queue.jobs[position].owner
        if owner not in within_reach:
            continue
        if position in queue.in_line(sorted([*foremost, position])):
            yield position
            continue
        within_reach.remove(owner)
        if not within_reach:
            return


def _in_order(queue: AdmissionQueue, policy: BurstBufferPolicy, asking: Sequence[int]) -> Iterator[int]:
    """Jobs that ask for burst buffer, in the order in which places would be given to them if there were enough."""
    places_taken, known, wanted = sum(queue.taken.values()), 0, policy.looks_at
    while True:
        line = queue.in_line(asking, Places(places_taken + wanted, queue.places.per_owner))
        yield from line[known:]
        if len(line) < wanted:
            return
        known, wanted = wanted, 2 * wanted


def _foremost(queue: AdmissionQueue, positions: Sequence[int]) -> list[int]:
    """As many jobs of each owner, from the front, as there are free places: no others can get one."""
    counts: dict[str, int] = {}
    foremost = []
    for position in positions:
        owner = queue.jobs[position].owner
        counts[owner] = counts.get(owner, 0) + 1
        if counts[owner] <= queue.free_places:
            foremost.append(position)
    return foremost


def _give_burst_buffer(
    queue: AdmissionQueue, policy: BurstBufferPolicy, line: Iterator[int]
) -> tuple[list[int], set[int]]:
    """The jobs that were looked at, in their order, and those of them that get burst buffer.

    When all of a window do, the next jobs are the window.
    """
    looked_at, chosen = list[int](), set[int]()
    free_gb = max(0, policy.quota_gb - queue.held_gb)
    while len(chosen) < queue.free_places and (window := list(islice(line, policy.looks_at))):
        looked_at += window
        granted = _choose(queue, policy, window, free_gb, queue.free_places - len(chosen))
        free_gb -= sum(queue.jobs[position].burst_buffer_gb for position in granted)
        chosen.update(granted)
        if len(granted) < len(window):
            break
    return looked_at, chosen


def _choose(
    queue: AdmissionQueue, policy: BurstBufferPolicy, window: Sequence[int], free_gb: int, places: int
) -> list[int]:
    """The jobs of a window that get burst buffer."""
    granted: list[int] = []
    first = [position for position in window if policy.comes_first(queue.jobs[position])]
    for position in first:
        if queue.jobs[position].burst_buffer_gb > free_gb or len(granted) == places:
            return granted
        granted.append(position)
        free_gb -= queue.jobs[position].burst_buffer_gb
    others = [
        position for position in window if position not in first and queue.jobs[position].burst_buffer_gb <= free_gb
    ]
    return granted + _select(queue, policy, others, free_gb, places - len(granted))


def _select(
    queue: AdmissionQueue, policy: BurstBufferPolicy, window: Sequence[int], free_gb: int, places: int
) -> list[int]:
    amounts = [queue.jobs[position].burst_buffer_gb for position in window]
    if len(window) <= places and sum(amounts) <= free_gb:
        return list(window)
    from malletrain.selection.places import select_for_places  # imports numpy, which JobManager does without at first

    problem = SelectionProblem(
        MachineResources(queue.places.all, policy.quota_gb),
        FreeResources(places, burst_buffer_gb=free_gb),
        tuple(ResourceRequest(1, amount) for amount in amounts),
    )
    return [window[position] for position in select_for_places(problem)]
