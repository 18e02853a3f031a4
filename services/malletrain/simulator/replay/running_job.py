"""An admitted job in a replay: its nodes, its progress, and what rescales and preemptions cost it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.allocator.problem.objective import ScaleRates, metric_scale, rates, scale_rates
from malletrain.model.job_value import curve_at
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions


@dataclass(slots=True, eq=False)
class RunningJob:
    """An admitted job. Progress is known up to `since_s`; from there it continues at one rate, after a stall if any.

    Attributes:
        choices: Its permitted scales and rates for the allocator.
        speeds: Samples/s on 0, 1, 2, … nodes; 0 below min_nodes.
        most: Largest scale in nodes that its curve and the trace permit; 0 if that is below min_nodes.
        fixed: Scale in nodes under the policy `fixed`.
        admitted_s: When it was admitted, in seconds.
        nodes: Nodes that it holds.
        rate: Samples/s when it does not stall.
        since_s: Time in seconds up to which the figures below are settled.
        done: Samples processed, net of losses.
        stalled_until_s: End of its stall in seconds.
        preemption_until_s: End of the part of the stall that a preemption caused.
        finish_s: When it will be done if nothing changes, in seconds.
        broken: Whether it has lost nodes in the present event.
        share_weight: Factor of its value in the objective that comes from its owner's fair share.
        unit: What a sample counts for in the metric, whatever its owner's value curve makes of it.
    """

    job: ReplayJob
    choices: ScaleRates
    speeds: list[float]
    most: int
    fixed: int
    admitted_s: float
    nodes: set[str]
    rate: float = 0.0
    since_s: float = 0.0
    done: float = 0.0
    stalled_until_s: float = -inf
    preemption_until_s: float = -inf
    finish_s: float = inf
    broken: bool = False
    started_s: float | None = None
    ended_s: float | None = None
    node_seconds: float = 0.0
    preemptions: int = 0
    rescales: int = 0
    preemption_samples: float = 0.0
    rescale_samples: float = 0.0
    share_weight: float = 1.0
    unit: float = 1.0

    @property
    def count(self) -> int:
        """Number of nodes that it holds."""
        return len(self.nodes)

    def done_at(self, now_s: float) -> float:
        """Samples processed up to `now_s`, which must not be before `since_s`."""
        if now_s >= self.finish_s:
            return self.job.samples
        begin = self.stalled_until_s if self.stalled_until_s > self.since_s else self.since_s
        return self.done + self.rate * (now_s - begin) if now_s > begin else self.done

    def settle(self, now_s: float) -> None:
        """Bring progress and losses up to `now_s`."""
        begin = self.since_s
        self.node_seconds += len(self.nodes) * (now_s - begin)
        if self.stalled_until_s > begin:
            preempted = min(now_s, self.preemption_until_s)
            if preempted > begin:
                self.preemption_samples += self.rate * (preempted - begin)
                begin = preempted
            stalled = min(now_s, self.stalled_until_s)
            if stalled > begin:
                self.rescale_samples += self.rate * (stalled - begin)
                begin = stalled
        self.done += self.rate * (now_s - begin)
        self.since_s = now_s

    def predict(self) -> None:
        """Compute `finish_s`; called after `settle` and every change."""
        if self.rate <= 0:
            self.finish_s = inf
            return
        begin = self.stalled_until_s if self.stalled_until_s > self.since_s else self.since_s
        self.finish_s = begin + max(0.0, self.job.samples - self.done) / self.rate


def admit(job: ReplayJob, options: ReplayOptions, nodes: int, now_s: float) -> RunningJob:
    """A job that has just been admitted and has no nodes yet.

    Args:
        options: Options of the replay.
        nodes: Number of all nodes of the trace.
        now_s: The time in seconds.
    """
    most = min(job.max_nodes, job.curve[-1].nodes, nodes)
    most = most if most >= job.min_nodes else 0
    speeds_by_nodes = speeds(job, most)
    return RunningJob(
        job=job,
        choices=scale_rates(job.demand(), options.metric, nodes),
        speeds=speeds_by_nodes,
        most=most,
        fixed=min(most, max(job.min_nodes, options.fixed_nodes or most)),
        admitted_s=now_s,
        nodes=set(),
        since_s=now_s,
        unit=metric_scale(job.demand(), options.metric) if any(speeds_by_nodes) else 1.0,
    )


def choices_at(run: RunningJob, options: ReplayOptions, now_s: float) -> ScaleRates:
    """The scales of a job with what they count for at a time in seconds: a deadline makes of them something else."""
    job = run.job
    if job.value.deadline is None:
        return run.choices
    value = curve_at(job.value, job.submit_s, now_s, job.samples - run.done_at(now_s))
    return scale_rates(replace(job.demand(), value=value), options.metric, run.most)


def speeds(job: ReplayJob, nodes: int) -> list[float]:
    """Samples/s on 0, 1, 2, … `nodes` nodes (BFTrainer, Eq. 12); 0 below min_nodes."""
    all_rates: list[float] = rates(job.demand(), range(nodes + 1)).tolist()
    return [rate if count >= job.min_nodes else 0.0 for count, rate in enumerate(all_rates)]


class Charges(Protocol):
    """How a job is charged. The methods are called in this order at one instant, each after `RunningJob.settle`."""

    def preempt(self, run: RunningJob, now_s: float) -> float:
        """Charge for nodes that have left; `run.rate` is still the rate before. Returns the cost in samples."""

    def rescale(self, run: RunningJob, before: int, held: int, now_s: float) -> float:
        """Charge for a change of scale; the job's new nodes and its new rate are set already.

        Args:
            run: The job.
            before: Number of nodes before the event.
            held: Number of nodes that were left after the main scheduler took some.
            now_s: The time in seconds.

        Returns:
            Cost of the chosen rescale in samples; 0 if only the main scheduler changed the scale.
        """

    def growth_stall_s(self, job: ReplayJob) -> float:
        """How long a job stands still in a growth, in seconds."""


def charges_of(options: ReplayOptions) -> Charges:
    """How jobs are charged in a replay."""
    if options.free:
        return FreeCharges()
    return PaperCharges() if options.charged is CostModel.PAPER else StallCharges(options.commit_s)


class PaperCharges:
    """As BFTrainer: `R · O(C)` samples at once (Eq. 13-16). A preemption costs `R_down · rate`, once per event."""

    def preempt(self, run: RunningJob, now_s: float) -> float:
        """See `Charges`."""
        del now_s
        cost = run.job.scale_down_s * run.rate
        run.done -= cost
        run.preemption_samples += cost
        return cost

    def rescale(self, run: RunningJob, before: int, held: int, now_s: float) -> float:
        """See `Charges`."""
        del before, now_s
        if run.count == held:
            return 0.0
        stall = run.job.scale_up_s if run.count > held else run.job.scale_down_s
        cost = stall * run.speeds[held]
        run.done -= cost
        run.rescale_samples += cost
        return cost

    def growth_stall_s(self, job: ReplayJob) -> float:
        """See `Charges`."""
        del job
        return 0.0


class StallCharges:
    """The real loss: the whole job stands still for R seconds, also when it starts.

    A preemption also loses the samples since the last commit; commits are `commit_s` seconds apart, counted from the
    last rescale. A job that loses a node and gets another in one event has one stall, the longer of the two. A rescale
    during a stall ends no sooner than that stall.
    """

    def __init__(self, commit_s: float) -> None:
        """`commit_s`: seconds between two commits; 0: a preemption loses no samples."""
        self._commit_s = commit_s

    def preempt(self, run: RunningJob, now_s: float) -> float:
        """See `Charges`."""
        worked = now_s - max(run.stalled_until_s, run.started_s or 0.0)
        if self._commit_s <= 0 or worked <= 0:
            return 0.0
        lost = min(run.done, run.rate * (worked % self._commit_s))
        run.done -= lost
        run.preemption_samples += lost
        return lost

    def rescale(self, run: RunningJob, before: int, held: int, now_s: float) -> float:
        """See `Charges`."""
        if run.count == 0:
            run.stalled_until_s = run.preemption_until_s = now_s
            return 0.0
        forced = run.job.scale_down_s if held < before else 0.0
        chosen = run.job.scale_up_s if run.count > held else run.job.scale_down_s if run.count < held else 0.0
        run.preemption_until_s = now_s + forced
        run.stalled_until_s = max(run.stalled_until_s, now_s + max(forced, chosen))
        return run.rate * max(0.0, chosen - forced)

    def growth_stall_s(self, job: ReplayJob) -> float:
        """See `Charges`."""
        return job.scale_up_s


class FreeCharges:
    """Rescales and preemptions cost nothing."""

    def preempt(self, run: RunningJob, now_s: float) -> float:
        """See `Charges`."""
        del run, now_s
        return 0.0

    def rescale(self, run: RunningJob, before: int, held: int, now_s: float) -> float:
        """See `Charges`."""
        del run, before, held, now_s
        return 0.0

    def growth_stall_s(self, job: ReplayJob) -> float:
        """See `Charges`."""
        del job
        return 0.0
