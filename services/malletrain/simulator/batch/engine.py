"""Event-driven simulation of a batch scheduler on a space-shared machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush

from malletrain.simulator.batch.cluster import BackfillReservation, ExpectedEnds, FreeNodes
from malletrain.simulator.batch.dependencies import HeldJobs, add_submitted
from malletrain.simulator.batch.policies import BatchPolicy, first_of, head_of
from malletrain.simulator.batch.schedule import BatchRun, Schedule
from malletrain.simulator.batch.wait_queue import Floats, WaitQueue
from malletrain.simulator.batch.workload import BatchWorkload

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


class _Simulation:
    def __init__(
        self, workload: BatchWorkload, policy: BatchPolicy, overrun: Overrun, progress: Callable[[int], None] | None
    ) -> None:
        self._workload = workload
        self._jobs = workload.jobs
        self._policy = policy
        self._overrun = overrun
        self._progress = progress
        self._free = FreeNodes(workload.nodes)
        self._expected = ExpectedEnds(workload.nodes)
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
        while self._ends or self._submitted < len(self._jobs):
            self._now_s = self._next_instant()
            self._end_runs()
            self._submit_jobs()
            self._decide()
        if self._progress:
            self._progress(len(self._runs))
        return Schedule(self._policy.name, self._workload.nodes, tuple(self._runs), self._workload.unix_start_s)

    def _next_instant(self) -> float:
        times = [self._ends[0][0]] if self._ends else []
        if self._submitted < len(self._jobs):
            times.append(self._jobs[self._submitted].submit_s)
        return min(times)

    def _end_runs(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_s:
            number = heappop(self._ends)[1]
            run = self._runs[number]
            self._free.give_back(run.nodes)
            self._expected.remove(run.start_s + run.job.estimate_s, run.job.nodes)
            for index in self._held_back.end(self._run_of[number]):
                self._waiting.insert(index, self._jobs[index])

    def _submit_jobs(self) -> None:
        first = end = self._submitted
        while end < len(self._jobs) and self._jobs[end].submit_s <= self._now_s:
            end += 1
        if end > first:
            add_submitted(self._waiting, self._held_back, self._jobs, first, end)
            self._submitted = end

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
        length_s = min(job.run_s, job.estimate_s) if self._overrun is Overrun.KILL else job.run_s
        taken = self._free.take(job.nodes)
        run = BatchRun(job, self._now_s, self._now_s + length_s, taken, self._reserved.get(index))
        heappush(self._ends, (run.end_s, len(self._runs)))
        self._expected.add(self._now_s + job.estimate_s, job.nodes)
        self._runs.append(run)
        self._run_of.append(index)
        if self._progress and len(self._runs) % _PROGRESS_EVERY == 0:
            self._progress(len(self._runs))
