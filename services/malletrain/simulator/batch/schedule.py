"""The schedule that a simulation produces, and its statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean, median

from malletrain.simulator.batch.workload import BatchJob

# Jobs shorter than this would dominate the mean slowdown (Feitelson et al., "Theory and practice in parallel job
# scheduling", 1997).
SLOWDOWN_THRESHOLD_S = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """The run of one job.

    Attributes:
        job: The job.
        start_s: Start in seconds after second 0 of the log.
        end_s: End in seconds after second 0 of the log; its nodes are free from then on.
        nodes: Indices of its nodes, counted from 0, as disjoint ascending ranges.
        reserved_s: Start of its first reservation, made when it was the head of the queue and did not fit; None if it
            had none.
    """

    job: BatchJob
    start_s: float
    end_s: float
    nodes: tuple[range, ...]
    reserved_s: float | None = None

    @property
    def wait_s(self) -> float:
        """Seconds from submission to start."""
        return self.start_s - self.job.submit_s

    @property
    def killed(self) -> bool:
        """Whether it was killed at its estimate."""
        return self.end_s < self.start_s + self.job.run_s

    @property
    def bounded_slowdown(self) -> float:
        """max(1, (wait + run) / max(run, 10 s))."""
        run_s = self.end_s - self.start_s
        return max(1.0, (self.wait_s + run_s) / max(run_s, SLOWDOWN_THRESHOLD_S))


@dataclass(frozen=True)
class Schedule:
    """The runs of a workload.

    Attributes:
        policy: Name of the policy.
        nodes: Nodes of the machine.
        runs: One per job, by start; those of one instant in the order in which the scheduler started them.
        unix_start_s: Second 0 of the log in seconds since the epoch; None if it is not known.
    """

    policy: str
    nodes: int
    runs: tuple[BatchRun, ...]
    unix_start_s: int | None = None

    @property
    def first_submit_s(self) -> float:
        """First submission, seconds."""
        return min(run.job.submit_s for run in self.runs)

    @property
    def first_submit_at(self) -> str | None:
        """First submission in ISO 8601, UTC; None if the log does not say."""
        if self.unix_start_s is None:
            return None
        return (_EPOCH + timedelta(seconds=self.unix_start_s + self.first_submit_s)).isoformat()

    @property
    def last_submit_s(self) -> float:
        """Last submission, seconds."""
        return max(run.job.submit_s for run in self.runs)

    @property
    def last_end_s(self) -> float:
        """End of the last run, seconds."""
        return max(run.end_s for run in self.runs)


@dataclass(frozen=True, slots=True)
class ScheduleStatistics:
    """Statistics of a schedule.

    Attributes:
        jobs: Number of jobs.
        killed: Number of jobs that were killed at their estimate.
        makespan_s: From the first submission to the last end, seconds.
        utilisation: Node-seconds in runs by those of the machine over the makespan, 0 to 1.
        mean_wait_s: Mean wait, seconds.
        median_wait_s: Median wait, seconds.
        wait_95_s: The wait that 95 % of the jobs do not exceed (nearest rank), seconds.
        mean_bounded_slowdown: Mean of max(1, (wait + run) / max(run, 10 s)).
    """

    jobs: int
    killed: int
    makespan_s: float
    utilisation: float
    mean_wait_s: float
    median_wait_s: float
    wait_95_s: float
    mean_bounded_slowdown: float


def statistics_of(schedule: Schedule) -> ScheduleStatistics:
    """The statistics of a schedule."""
    waits = sorted(run.wait_s for run in schedule.runs)
    makespan_s = schedule.last_end_s - schedule.first_submit_s
    work = math.fsum(run.job.nodes * (run.end_s - run.start_s) for run in schedule.runs)
    return ScheduleStatistics(
        jobs=len(schedule.runs),
        killed=sum(run.killed for run in schedule.runs),
        makespan_s=makespan_s,
        utilisation=work / (makespan_s * schedule.nodes),
        mean_wait_s=fmean(waits),
        median_wait_s=median(waits),
        wait_95_s=_nearest_rank(waits, 0.95),
        mean_bounded_slowdown=fmean(run.bounded_slowdown for run in schedule.runs),
    )


def node_names(nodes: int) -> tuple[str, ...]:
    """Names of a machine's nodes: n0001, n0002, …, with equally many digits."""
    width = max(4, len(str(nodes)))
    return tuple(f"n{number:0{width}}" for number in range(1, nodes + 1))


def _nearest_rank(ascending: Sequence[float], share: float) -> float:
    return ascending[math.ceil(share * len(ascending)) - 1]
