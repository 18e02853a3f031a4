"""Event-driven simulation of a batch scheduler on a space-shared machine whose jobs may wait for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np

from malletrain.simulator.batch.policies import BatchPolicy, Floats, WaitQueue, first_of, head_of
from malletrain.simulator.batch.schedule import BatchRun, Schedule
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """The reservation of the head of the queue (Lifka 1995, "The ANL/IBM SP scheduling system").

    Attributes:
        start_s: Shadow time: when enough nodes will be free for the head, by the users' estimates.
        extra: Number of nodes that will be free then and that the head does not need.
    """

    start_s: float
    extra: int


class FreeNodes:
    """The free nodes of a machine as sorted, disjoint, non-touching ranges of indices."""

    def __init__(self, nodes: int) -> None:
        self.count = nodes
        self._starts = [0]
        self._stops = [nodes]

    def take_nodes(self, count: int) -> tuple[range, ...]:
        """Take the lowest free nodes; `count` is at most `self.count`."""
        nodes = []
        missing = count
        used_up = 0
        while missing:
            start, stop = self._starts[used_up], self._stops[used_up]
            if stop - start > missing:
                stop = self._starts[used_up] = start + missing
            else:
                used_up += 1
            nodes.append(range(start, stop))
            missing -= stop - start
        del self._starts[:used_up], self._stops[:used_up]
        self.count -= count
        return tuple(nodes)

    def give_back(self, ranges: tuple[range, ...]) -> None:
        """Free nodes that were taken."""
        for freed in ranges:
            self._insert(freed.start, freed.stop)
            self.count += len(freed)

    def _insert(self, start: int, stop: int) -> None:
        starts, stops = self._starts, self._stops
        index = bisect_left(starts, start)
        joins_left = index > 0 and stops[index - 1] == start
        joins_right = index < len(starts) and starts[index] == stop
        if joins_left and joins_right:
            stops[index - 1] = stops[index]
            del starts[index], stops[index]
        elif joins_left:
            stops[index - 1] = stop
        elif joins_right:
            starts[index] = start
        else:
            starts.insert(index, start)
            stops.insert(index, stop)


class ExpectedEnds:
    """Expected ends of running jobs, sorted. Arrays make a reservation take microseconds with thousands of jobs."""

    def __init__(self, nodes: int) -> None:
        self._ends = np.empty(nodes, dtype=np.float64)
        self._nodes = np.empty(nodes, dtype=np.int64)
        self._count = 0

    def add(self, end_s: float, nodes: int) -> None:
        """Add a running job that is expected to end at `end_s`."""
        ends, sizes, count = self._ends, self._nodes, self._count
        index = int(ends[:count].searchsorted(end_s))
        ends[index + 1 : count + 1] = ends[index:count]
        sizes[index + 1 : count + 1] = sizes[index:count]
        ends[index] = end_s
        sizes[index] = nodes
        self._count = count + 1

    def remove(self, end_s: float, nodes: int) -> None:
        """Remove a job of `nodes` nodes that was expected to end at `end_s`; any of several equal ones."""
        ends, sizes, count = self._ends, self._nodes, self._count
        index = int(ends[:count].searchsorted(end_s))
        while sizes[index] != nodes:
            index += 1
        ends[index : count - 1] = ends[index + 1 : count]
        sizes[index : count - 1] = sizes[index + 1 : count]
        self._count = count - 1

    def reserve(self, wanted: int, free: int, now_s: float) -> BackfillReservation:
        """The first time at which `wanted` nodes, which are more than `free`, will be free.

        A job that runs longer than its estimate is expected to end now.
        """
        ends = self._ends[: self._count]
        freed = self._nodes[: self._count].cumsum()
        shadow_s = max(now_s, float(ends[freed.searchsorted(wanted - free)]))
        # Every job that ends at the shadow time frees its nodes, also beyond what the head needs.
        ended = int(ends.searchsorted(shadow_s, side="right"))
        return BackfillReservation(shadow_s, free + int(freed[ended - 1]) - wanted)


class HeldJobs:
    """Which submitted jobs are held back, by their indices in the order of submission.

    A number stands for the newest job before with that number; one that no job before has is of a job that ended before
    the log begins.
    """

    def __init__(self, jobs: Sequence[BatchJob]) -> None:
        """Find out who waits for whom."""
        self._open: dict[int, int] = {}
        self._behind: dict[int, list[int]] = {}
        self._held: set[int] = set()
        newest: dict[int, int] = {}
        for index, job in enumerate(jobs):
            before = {newest[number] for number in job.after if number in newest}
            if before:
                self._open[index] = len(before)
            for earlier in before:
                self._behind.setdefault(earlier, []).append(index)
            newest[job.number] = index

    def __bool__(self) -> bool:
        """Whether any job waits for another, or still may."""
        return bool(self._behind)

    def holds(self, index: int) -> bool:
        """Whether a job that is submitted now is held back."""
        if index not in self._open:
            return False
        self._held.add(index)
        return True

    def end(self, index: int) -> list[int]:
        """A job has ended: the submitted jobs that nothing holds back any more, ascending."""
        free = []
        for later in self._behind.pop(index, ()):
            self._open[later] -= 1
            if not self._open[later]:
                del self._open[later]
                if later in self._held:
                    self._held.remove(later)
                    free.append(later)
        return free


_PROGRESS_EVERY = 1000


class Overrun(StrEnum):
    """What happens to a job that runs longer than its estimate."""

    KILL = "kill"
    RUN = "run"


def simulate(
    workload: BatchWorkload,
    policy: BatchPolicy,
    *,
    overrun: Overrun = Overrun.KILL,
    progress: Callable[[int], None] | None = None,
) -> Schedule:
    """Run a workload.

    Events are submissions and ends. At each instant all ends come first, then all submissions; then the scheduler
    decides once. It starts jobs from the head of the queue while they fit, and then backfills if its policy does.

    Args:
        workload: Jobs and machine; no job is larger than the machine.
        policy: Policy of the scheduler.
        overrun: Whether jobs are killed at their estimate, as real schedulers do, or run to their end. A job whose
            estimate has passed is then expected to end at any moment.
        progress: Called from time to time with the number of jobs that have started.
    """
    return _Simulation(workload, policy, overrun, progress).run()


class BatchSimulation(ABC):
    """Ends and submissions, instant by instant; an engine says what the machine has and what is decided then."""

    def __init__(
        self, workload: BatchWorkload, policy: BatchPolicy, overrun: Overrun, progress: Callable[[int], None] | None
    ) -> None:
        self._workload, self._jobs = workload, workload.jobs
        self._policy, self._overrun, self._progress = policy, overrun, progress
        self._waiting = WaitQueue()
        self._submitted = 0
        self._runs: list[BatchRun] = []
        self._run_of: list[int] = []
        self._held_back = HeldJobs(workload.jobs)
        # (end, index in runs): simultaneous ends are handled in the order of their starts.
        self._ends: list[tuple[float, int]] = []
        self._reserved: dict[int, float] = {}
        self._now_s = 0.0

    def run(self) -> Schedule:
        """Run all jobs."""
        while self._ends or self._submitted < len(self._jobs):
            self._now_s = self._next_instant()
            self._end_runs()
            self._submit_jobs()
            if len(self._waiting):
                self._decide()
        if self._progress:
            self._progress(len(self._runs))
        return Schedule(self._policy.name, self._workload.nodes, tuple(self._runs), self._workload.unix_start_s)

    @abstractmethod
    def _decide(self) -> None:
        """Start waiting jobs."""

    @abstractmethod
    def _give_back(self, number: int) -> None:
        """Free what the run with this number has taken."""

    def _next_instant(self) -> float:
        times = [self._ends[0][0]] if self._ends else []
        if self._submitted < len(self._jobs):
            times.append(self._jobs[self._submitted].submit_s)
        return min(times)

    def _end_runs(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_s:
            number = heappop(self._ends)[1]
            self._give_back(number)
            for index in self._held_back.end(self._run_of[number]):
                self._waiting.insert(index, self._jobs[index])

    def _submit_jobs(self) -> None:
        first = end = self._submitted
        while end < len(self._jobs) and self._jobs[end].submit_s <= self._now_s:
            end += 1
        self._submitted = end
        if not self._held_back:
            self._waiting.add(first, self._jobs[first:end])
            return
        for index in range(first, end):
            if not self._held_back.holds(index):
                self._waiting.insert(index, self._jobs[index])

    def _begin(self, index: int, nodes: tuple[range, ...]) -> None:
        """Note the start of a job on nodes that it has taken."""
        job = self._jobs[index]
        length_s = min(job.run_s, job.estimate_s) if self._overrun is Overrun.KILL else job.run_s
        run = BatchRun(job, self._now_s, self._now_s + length_s, nodes, self._reserved.get(index))
        heappush(self._ends, (run.end_s, len(self._runs)))
        self._runs.append(run)
        self._run_of.append(index)
        if self._progress and len(self._runs) % _PROGRESS_EVERY == 0:
            self._progress(len(self._runs))


class _Simulation(BatchSimulation):
    def __init__(
        self, workload: BatchWorkload, policy: BatchPolicy, overrun: Overrun, progress: Callable[[int], None] | None
    ) -> None:
        super().__init__(workload, policy, overrun, progress)
        self._free = FreeNodes(workload.nodes)
        self._expected = ExpectedEnds(workload.nodes)

    def _give_back(self, number: int) -> None:
        run = self._runs[number]
        self._free.give_back(run.nodes)
        self._expected.remove(run.start_s + run.job.estimate_s, run.job.nodes)

    def _decide(self) -> None:
        waiting, free = self._waiting, self._free
        while len(waiting):
            scores = self._scores()
            head = head_of(scores)
            wanted = int(waiting.nodes[head])
            if wanted > free.count:
                if self._policy.backfills:
                    self._backfill(self._reserve(head, wanted), scores)
                return
            self._start(head)

    def _scores(self) -> Floats | None:
        return self._policy.scores(self._waiting, self._now_s) if self._policy.scores else None

    def _reserve(self, head: int, wanted: int) -> BackfillReservation:
        reservation = self._expected.reserve(wanted, self._free.count, self._now_s)
        self._reserved.setdefault(self._waiting.job_at(head), reservation.start_s)
        return reservation

    def _backfill(self, reservation: BackfillReservation, scores: Floats | None) -> None:
        """Start jobs that do not delay the head: they end before its reservation, or use nodes that it does not need.

        The head itself does not fit and is not considered.
        """
        waiting, extra = self._waiting, reservation.extra
        while self._free.count and len(waiting) > 1:
            early = self._now_s + waiting.estimate_s <= reservation.start_s
            chosen = first_of(scores, (waiting.nodes <= self._free.count) & (early | (waiting.nodes <= extra)))
            if chosen is None:
                return
            if not early[chosen]:
                extra -= int(waiting.nodes[chosen])
            self._start(chosen)
            scores = self._scores()

    def _start(self, position: int) -> None:
        index = self._waiting.job_at(position)
        self._waiting.remove(position)
        job = self._jobs[index]
        self._begin(index, self._free.take_nodes(job.nodes))
        self._expected.add(self._now_s + job.estimate_s, job.nodes)
