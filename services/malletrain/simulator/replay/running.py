"""A job that takes part in a replay: its nodes, its progress, and what it has lost."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from malletrain.allocator.worth import Choices, rates
from malletrain.simulator.replay.workload import TraceJob


@dataclass(slots=True, eq=False)
class Running:
    """One job. Progress is kept up to `since_s`, and goes on from there at one rate after a stall.

    Attributes:
        job: What it is.
        choices: The allocator's view of it.
        speeds: Samples/s at 0, 1, 2.. nodes; 0 below min_nodes.
        most: Largest scale in nodes, within what its curve and the trace allow; 0 where that is below min_nodes.
        fixed: Scale in nodes under the policy `fixed`.
        admitted_s: When it was admitted, in seconds.
        nodes: The nodes it holds.
        rate: Samples/s, once it does not stall.
        since_s: Up to when the figures below are right, in seconds.
        done: Samples processed, net of what was lost.
        stalled_until_s: Up to when it stands still.
        preemption_until_s: Up to when that is because of a preemption.
        finish_s: When it will be done if nothing changes.
        broken: Whether it has lost nodes in the present event.
    """

    job: TraceJob
    choices: Choices
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

    @property
    def count(self) -> int:
        """Nodes it holds."""
        return len(self.nodes)

    def done_at(self, now_s: float) -> float:
        """Samples processed up to `now_s`, which is not before `since_s`; never more than the job has."""
        if now_s >= self.finish_s:
            return self.job.samples
        begin = self.stalled_until_s if self.stalled_until_s > self.since_s else self.since_s
        return self.done + self.rate * (now_s - begin) if now_s > begin else self.done

    def settle(self, now_s: float) -> None:
        """Bring progress and losses up to date."""
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
        """Work out when it will be done; after `settle` and any change."""
        if self.rate <= 0:
            self.finish_s = inf
            return
        begin = self.stalled_until_s if self.stalled_until_s > self.since_s else self.since_s
        self.finish_s = begin + max(0.0, self.job.samples - self.done) / self.rate


def speeds(job: TraceJob, nodes: int) -> list[float]:
    """Samples/s at 0, 1, 2.. up to `nodes` nodes (BFTrainer, Eq. 12); nothing runs below min_nodes."""
    found: list[float] = rates(job.demand(), range(nodes + 1)).tolist()
    return [rate if count >= job.min_nodes else 0.0 for count, rate in enumerate(found)]
