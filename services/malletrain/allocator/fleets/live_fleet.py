"""A fleet at the moment of a plan: rates of its members, what is left to do, and what they have. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from malletrain.allocator.fleets.members import FleetMember, LateRate
from malletrain.allocator.problem.forward_time import FORWARD_SECONDS
from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetPlanner, FleetProblem, RateTolerance
from malletrain.fleet.rates import RateTable, table_of
from malletrain.fleet.sharing import Preprocessing, Sharing, of_terms
from malletrain.fleet.spec import FleetSpec
from malletrain.model.scaling import ScalingPoint

GUESSED_EPOCHS = 24
"""How many epochs a member is believed to need that does not say it."""
_PARTS = 100
"""Remaining work is counted in parts of an epoch, so that a plan that is made again soon finds what it has computed."""
_MIN_RATE = 1e-9
_LIMITS = 256


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A member that may have GPUs now.

    Attributes:
        job_id: Its job.
        curve: Samples per second by GPUs, ascending.
        parts: What it still needs, in hundredths of an epoch, at least 1.
        held: GPUs that it has.
        known: Whether anything is known of its rate: declared, measured, or of its family.
        sure: Numbers of GPUs at which its rate is known well enough.
        profiled: Whether its rates on several GPUs are measured on purpose.
        smallest: The fewest GPUs that it may have.
        largest: The most GPUs that it may have.
        permitted: The only numbers of GPUs that it may have; empty: all between these.
        late: Its rate that did not come in time; None: it is not late with any.
    """

    job_id: str
    curve: tuple[ScalingPoint, ...]
    parts: int
    held: int = 0
    known: bool = True
    sure: tuple[int, ...] = ()
    profiled: bool = False
    smallest: int = 1
    largest: int = 1
    permitted: tuple[int, ...] = ()
    late: LateRate | None = None

    def max_within(self, gpus: int) -> int:
        """The most GPUs of so many that it may have; 0: none."""
        if self.permitted:
            return max((count for count in self.permitted if count <= gpus), default=0)
        return min(gpus, self.largest) if gpus >= self.smallest else 0

    def least_from(self, gpus: int) -> int:
        """The fewest GPUs, but as many as this, that it may have; the most where none are so many."""
        least = min((count for count in self.permitted if count >= gpus), default=max(self.smallest, gpus))
        return least if self.max_within(least) == least else self.max_within(max(least, self.largest))


@dataclass(frozen=True)
class LiveFleet:
    """A fleet at the moment of a plan.

    Attributes:
        terms: What its members have in common.
        divider: Who divides its GPUs; not AUTO.
        members: Members that may have GPUs now, in the order of their submission.
        resting: Members that may not, but have not ended: they are being stopped, or wait after a failure.
        flotilla: The flotilla as it began: jobs with how many GPUs it gives them; empty where there is none.
        flotilla_gpus: How many GPUs there were to divide when the last plan was made.
        gpus_per_node: GPUs of a node.
        max_gpus: The most GPUs that may be divided.
        forward_s: T_fwd in seconds.
        stall_s: For how long a member stands still when its GPUs change, in seconds.
        feed_rate: Samples per second that a feed can prepare on a node, as measured; 0: not known.
    """

    terms: FleetSpec
    divider: FleetPlanner
    members: tuple[LiveMember, ...]
    resting: frozenset[str] = frozenset()
    flotilla: tuple[tuple[str, int], ...] = ()
    flotilla_gpus: int = 0
    gpus_per_node: int = 1
    max_gpus: int = 1
    forward_s: float = FORWARD_SECONDS
    stall_s: float = 30.0
    feed_rate: float = 0.0

    def preprocess_rate(self, gpus: int) -> float:
        """Samples per second that CPUs preprocess where there are so many GPUs; 0: no limit is known.

        As the fleet says, else as feeds have measured. Each node prepares for its own members: those that share one
        find what one node prepares, and those that do not what all of theirs do.
        """
        if self.terms.preprocess_rate or not self.feed_rate:
            return self.terms.preprocess_rate
        together = self.terms.shared is not False
        return self.feed_rate * (1 if together else max(1, gpus // self.gpus_per_node))

    def preprocessing(self, otherwise: Sharing, gpus: int) -> Preprocessing:
        """What preprocessing makes of rates on so many GPUs; who does it where the fleet says nothing of a feed."""
        rate = self.preprocess_rate(gpus) or float("inf")
        return of_terms(rate, self.terms.pace, self.terms.shared, otherwise)

    @cached_property
    def table(self) -> RateTable:
        """Rates of the members, in their order."""
        curves = tuple(member.curve for member in self.members)
        # Nodes may just have left.
        present = (*(member.held for member in self.members), *(count for _, count in self.flotilla))
        return _table(curves, max(self.max_gpus, *present), self.terms.beyond_peak)

    def work(self) -> dict[int, float]:
        """Samples that each member still needs, by its place."""
        part = epoch_of(self.terms) / _PARTS
        return {place: member.parts * part for place, member in enumerate(self.members)}

    def problem(self, gpus: int) -> FleetProblem:
        """What is left of the ensemble, on so many GPUs."""
        rows = self.table.rows
        return FleetProblem(
            models=tuple(
                EnsembleModel(member.job_id, rows[place][:gpus], member.parts)
                for place, member in enumerate(self.members)
            ),
            gpus=gpus,
            gpus_per_node=self.gpus_per_node,
            samples_per_epoch=epoch_of(self.terms) / _PARTS,
            tolerance=RateTolerance(share=self.terms.rate_tolerance),
            active_share=self.terms.active_share,
            checkpoint_seconds=max(self.stall_s, self.terms.checkpoint_seconds),
            preprocess_rate=self.preprocess_rate(gpus),
            pace=self.terms.pace,
            beyond_peak=self.terms.beyond_peak,
            shared=self.terms.shared,
        )


def epoch_of(terms: FleetSpec) -> float:
    """Samples of an epoch; 1 where that is not known, since then all work is relative."""
    return terms.samples_per_epoch or 1.0


def measured_feed_rate(members: Iterable[FleetMember]) -> float:
    """Samples per second that a feed can prepare on a node, to about a tenth; 0: none has measured it.

    The median of the members' feeds. It is rounded, so that a plan that is made again soon finds what it has computed.
    """
    rates = [member.feed_rate for member in members if member.feed_rate > 0]
    if not rates:
        return 0.0
    median = statistics.median(rates)
    return round(median, 1 - math.floor(math.log10(median)))


def remaining_parts(members: Mapping[str, FleetMember]) -> dict[str, int]:
    """What each member still needs, in hundredths of an epoch, by its job.

    A member that does not say it is believed to need as much as the most demanding one that does, or 24 epochs. One
    that has trained on more than it was believed to need is believed to need another epoch.
    """
    most = max((member.target_samples for member in members.values()), default=0)
    parts = {}
    for job_id, member in members.items():
        epoch = epoch_of(member.terms)
        target = member.target_samples or most or GUESSED_EPOCHS * epoch
        remaining = target - member.samples
        parts[job_id] = max(1, round(_PARTS * (remaining / epoch if remaining > 0 else 1.0)))
    return parts


@lru_cache(_LIMITS)
def _table(curves: tuple[tuple[ScalingPoint, ...], ...], gpus: int, beyond_peak: BeyondPeak) -> RateTable:
    return table_of(tuple(_row(curve, gpus) for curve in curves), beyond_peak)


@lru_cache(16 * _LIMITS)
def _row(curve: Sequence[ScalingPoint], gpus: int) -> tuple[float, ...]:
    """Samples per second at 1, 2… GPUs: linear between the points, from 0, and constant beyond the last one."""
    points = [point for point in curve if point.nodes > 0]
    counts, rates = [0, *(point.nodes for point in points)], [0.0, *(point.rate for point in points)]
    row = np.interp(np.arange(1, gpus + 1), counts, rates)
    return tuple(np.maximum(row, _MIN_RATE).tolist())
