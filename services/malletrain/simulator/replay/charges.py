"""What rescaling and preemption cost a job in a replay."""

from __future__ import annotations

from typing import Protocol

from malletrain.simulator.replay.running import Running


class Charges(Protocol):
    """How a job is charged. Calls come in this order, all at one instant and after `Running.settle`."""

    def preempt(self, run: Running, now_s: float) -> float:
        """The main scheduler has taken nodes; `run.rate` is still that of before. Returns the cost in samples."""

    def rescale(self, run: Running, before: int, held: int, now_s: float) -> float:
        """The job now has `run.count` nodes, with `run.rate` set.

        Args:
            run: The job.
            before: Nodes it had before the event.
            held: Nodes that the main scheduler left it.
            now_s: The time in seconds.

        Returns:
            What was invested, in samples; 0 where only the main scheduler changed it.
        """


class PaperCharges:
    """BFTrainer's: `R · O(C)` at once, in samples (Eq. 13-16); a preemption costs `R_down · rate`, once per event."""

    def preempt(self, run: Running, now_s: float) -> float:
        """See `Charges`."""
        del now_s
        cost = run.job.scale_down_s * run.rate
        run.done -= cost
        run.preemption_samples += cost
        return cost

    def rescale(self, run: Running, before: int, held: int, now_s: float) -> float:
        """See `Charges`."""
        del before, now_s
        if run.count == held:
            return 0.0
        stall = run.job.scale_up_s if run.count > held else run.job.scale_down_s
        cost = stall * run.speeds[held]
        run.done -= cost
        run.rescale_samples += cost
        return cost


class StallCharges:
    """What is physically lost: the whole job stands still for R seconds at its new scale, cold starts included.

    A preemption also loses what was done since the last commit: commits come every `commit_s` seconds after each
    rescale. One event is one rescale: a job that loses a node and gets another stands still once, for the longer of
    both. A rescale while the last one is still going on ends no sooner than that.
    """

    def __init__(self, commit_s: float) -> None:
        """`commit_s`: seconds between two commits; 0: nothing is lost."""
        self._commit_s = commit_s

    def preempt(self, run: Running, now_s: float) -> float:
        """See `Charges`."""
        worked = now_s - max(run.stalled_until_s, run.started_s or 0.0)
        if self._commit_s <= 0 or worked <= 0:
            return 0.0
        lost = min(run.done, run.rate * (worked % self._commit_s))
        run.done -= lost
        run.preemption_samples += lost
        return lost

    def rescale(self, run: Running, before: int, held: int, now_s: float) -> float:
        """See `Charges`."""
        if run.count == 0:
            run.stalled_until_s = run.preemption_until_s = now_s
            return 0.0
        forced = run.job.scale_down_s if held < before else 0.0
        chosen = run.job.scale_up_s if run.count > held else run.job.scale_down_s if run.count < held else 0.0
        run.preemption_until_s = now_s + forced
        run.stalled_until_s = max(run.stalled_until_s, now_s + max(forced, chosen))
        return run.rate * max(0.0, chosen - forced)


class FreeCharges:
    """Nothing costs anything."""

    def preempt(self, run: Running, now_s: float) -> float:
        """See `Charges`."""
        del run, now_s
        return 0.0

    def rescale(self, run: Running, before: int, held: int, now_s: float) -> float:
        """See `Charges`."""
        del run, before, held, now_s
        return 0.0
