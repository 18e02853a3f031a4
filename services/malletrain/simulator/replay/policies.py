"""Policies of the fast engine: the production allocator, and two to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from malletrain.allocator.machine.plan_trigger import ChangeGaps
from malletrain.allocator.problem.forward_time import NOTHING_OBSERVED, ForwardPolicy, start_seconds
from malletrain.allocator.solvers.choice_table import NO_LIMIT, ChoiceTable, ObjectiveParameters
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup, owner_groups
from malletrain.simulator.replay.options import ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.running_job import RunningJob, choices_at

Decide = Callable[[Sequence[RunningJob], int], Sequence[int]]
"""From the admitted jobs in their order, and the number of idle nodes, to the new number of nodes of each job."""


class Advisor(Protocol):
    """Decides in place of a policy. It may use other curves than the true ones, and may decide without an event."""

    def next_look_s(self) -> float:
        """When it will decide even if there is no event, in seconds; infinity: never."""

    def counts(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        """As `Decide`, at `now_s` in seconds."""


def decider(
    options: ReplayOptions, stays: Callable[[], Iterable[float]] = tuple, clock: Callable[[], float] = float
) -> Decide:
    """The policy of a replay.

    Args:
        options: Options of the replay.
        stays: Returns the expected stays of the idle nodes in seconds.
        clock: Returns the simulated second.
    """
    if options.policy is ReplayPolicy.EQUAL:
        return lambda jobs, pool: equal_counts(
            [(run.job.min_nodes, run.most) for run in jobs], pool, options.paper_quirks
        )
    if options.policy is ReplayPolicy.FIXED:
        return lambda jobs, pool: fixed_counts([(run.count, run.broken, run.fixed) for run in jobs], pool)
    return _Allocator(options, stays, clock)


class _Allocator:
    """The production allocator. The choice table is rebuilt when other jobs are admitted, or a job has a deadline."""

    def __init__(
        self, options: ReplayOptions, stays: Callable[[], Iterable[float]], clock: Callable[[], float]
    ) -> None:
        self._options = options
        self._stays = stays
        self._clock = clock
        self._changes = ChangeGaps()
        self._jobs: Sequence[RunningJob] = ()
        self._table = ChoiceTable.of(())

    def __call__(self, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        options = self._options
        if jobs != self._jobs or any(run.job.value.deadline for run in jobs):
            self._jobs = list(jobs)
            self._table = ChoiceTable.of([choices_at(run, options, self._clock()) for run in jobs])
        # The published code's big-M is |N| + 1, which lets a job change by half of that in one solve.
        most = (pool + 1) // 2 if options.paper_quirks else NO_LIMIT
        parameters = ObjectiveParameters(self._forward_s(jobs), options.cost_model, most)
        choice = self._table.choose([run.count for run in jobs], pool, parameters, self._groups(jobs), _weights(jobs))
        counts: list[int] = choice.counts.tolist()
        if options.forward_policy is ForwardPolicy.EXPECTED:
            self._see(jobs, counts)
        return counts

    def _forward_s(self, jobs: Sequence[RunningJob]) -> float:
        policy = self._options.forward_policy
        if policy is ForwardPolicy.CONSTANT:
            return self._options.forward_s
        stays = self._stays() if policy is ForwardPolicy.SURVIVAL else ()
        observed = NOTHING_OBSERVED
        if policy is ForwardPolicy.EXPECTED:
            self._changes.keep_only({run.job.id for run in jobs}, self._clock())
            self._see(jobs, [run.count for run in jobs])
            observed = self._changes.observed(self._clock())
        return self._options.forward.of(stays, observed, [start_seconds(run.job.scale_up_s) for run in jobs])

    def _see(self, jobs: Sequence[RunningJob], counts: Sequence[int]) -> None:
        for run, count in zip(jobs, counts, strict=True):
            self._changes.see(run.job.id, count, self._clock())

    def _groups(self, jobs: Sequence[RunningJob]) -> Sequence[OwnerGroup]:
        limit = self._options.max_nodes_per_owner
        if not limit:
            return ()
        owners = [run.job.owner for run in jobs]
        return owner_groups(owners, dict.fromkeys(owners, limit))


def _weights(jobs: Sequence[RunningJob]) -> Sequence[float]:
    weights = [run.share_weight for run in jobs]
    return weights if any(weight != 1.0 for weight in weights) else ()


def equal_counts(bounds: Sequence[tuple[int, int]], pool: int, paper_quirks: bool = False) -> list[int]:
    """BFTrainer's baseline (section 5.1): equal shares; nodes that remain go to the jobs in their order.

    Args:
        bounds: Smallest and largest scale of each job in nodes, in the order of submission.
        pool: Number of nodes.
        paper_quirks: As in the published code, a job gets nothing if the share equals its smallest scale.
    """
    if not bounds:
        return []
    share = pool // len(bounds)
    counts = [
        min(share, most) if share > least or (share == least and not paper_quirks) else 0 for least, most in bounds
    ]
    rest = pool - sum(counts)
    for index, (least, most) in enumerate(bounds):
        more = min(most - counts[index], rest)
        if counts[index] + more >= least:
            counts[index] += more
            rest -= more
    return counts


def fixed_counts(jobs: Sequence[tuple[int, bool, int]], pool: int) -> list[int]:
    """Summit's killable queue (BFTrainer, section 2.2): a job runs at its fixed scale, and ends when it loses a node.

    Args:
        jobs: For each job in the order of submission: the number of nodes that it holds, whether it has just lost one,
            and its fixed scale.
        pool: Number of nodes.
    """
    counts = [count if count == size and not broken else 0 for count, broken, size in jobs]
    rest = pool - sum(counts)
    for index, (_, broken, size) in enumerate(jobs):
        if counts[index] == 0 and not broken and size <= rest:
            counts[index] = size
            rest -= size
    return counts
