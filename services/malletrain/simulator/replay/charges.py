"""How jobs are charged for rescales and preemptions in a replay."""

from __future__ import annotations

from typing import Protocol

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.running_job import RunningJob


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
