"""A job of the independent replay, with exact fractions."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from malletrain.simulator.replay.job_set import ReplayJob

ZERO = Fraction(0)


@dataclass(eq=False)
class NaiveJob:
    """An admitted job. `cut_s` is the end of its stall, `hit_s` the end of the part that a preemption caused."""

    job: ReplayJob
    admitted_s: Fraction
    largest: int
    nodes: list[str] = field(default_factory=list)
    rate: Fraction = ZERO
    done: Fraction = ZERO
    cut_s: Fraction = Fraction(-1)
    hit_s: Fraction = Fraction(-1)
    started_s: Fraction | None = None
    ended_s: Fraction | None = None
    node_seconds: Fraction = ZERO
    preemptions: int = 0
    rescales: int = 0
    preemption_samples: Fraction = ZERO
    rescale_samples: Fraction = ZERO

    def curve(self, nodes: int) -> Fraction:
        """O(n); the curves of these tests have a point at every scale."""
        points = self.job.curve
        return Fraction(points[min(nodes, len(points)) - 1].rate) if nodes else ZERO

    def speed(self, nodes: int) -> Fraction:
        """Samples/s; 0 below its smallest scale."""
        return self.curve(nodes) if nodes >= self.job.min_nodes else ZERO

    def sizes(self, pool: int) -> list[int]:
        """0 and all permitted scales within the pool."""
        return [0, *range(self.job.min_nodes, min(self.largest, pool) + 1)]

    def live(self, since_s: Fraction, until_s: Fraction) -> None:
        """Progress from one instant to the next, in which the job either stalls or trains."""
        seconds = until_s - since_s
        self.node_seconds += len(self.nodes) * seconds
        if since_s < self.hit_s:
            self.preemption_samples += self.rate * seconds
        elif since_s < self.cut_s:
            self.rescale_samples += self.rate * seconds
        else:
            self.done += self.rate * seconds
