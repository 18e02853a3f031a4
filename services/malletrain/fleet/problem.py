"""The problem: which members of an ensemble train together, on how many GPUs (Guan et al., MLSys 2020, Definition 1).

A flotilla is a set of members that train at the same time and eat the same preprocessed samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pace(StrEnum):
    """How members of a flotilla advance.

    `LOCKSTEP`: all at the rate of the slowest, or of preprocessing where that is slower. `OWN`: each at its own rate,
    or that of preprocessing.
    """

    LOCKSTEP = "lockstep"
    OWN = "own"


class BeyondPeak(StrEnum):
    """Whether a member may get more GPUs than it is fastest on (`ALLOW` is the letter of the paper)."""

    AVOID = "avoid"
    ALLOW = "allow"


class FleetPlanner(StrEnum):
    """What divides GPUs among members.

    `FLEET`: flotillas that share preprocessing. `MAKESPAN`: by remaining work. `LIST`: one GPU each, longest first.
    `MILP`: the allocator, by whole nodes. `AUTO`: the one of the first three that is the quickest in a simulation.
    """

    AUTO = "auto"
    FLEET = "fleet"
    MAKESPAN = "makespan"
    LIST = "list"
    MILP = "milp"


@dataclass(frozen=True, slots=True)
class EnsembleModel:
    """A member of the ensemble.

    Attributes:
        id: Its name, unique in the ensemble.
        rates: Measured rates in samples/s at 1, 2, 3… GPUs; at least one.
        epochs: How many epochs it needs, at least 1.
    """

    id: str
    rates: tuple[float, ...]
    epochs: int


@dataclass(frozen=True, slots=True)
class RateTolerance:
    """δ: how far the rate of a member of a flotilla may be from the reference rate.

    Attributes:
        samples_per_second: The distance, where `share` is 0.
        share: The distance as a share of the reference rate, above 0; 0: `samples_per_second` holds.
    """

    samples_per_second: float = 20.0
    share: float = 0.0

    def around(self, reference: float) -> float:
        """The distance in samples/s for a reference rate in samples/s."""
        return self.share * reference if self.share else self.samples_per_second


@dataclass(frozen=True, slots=True)
class FleetProblem:
    """An ensemble and the GPUs it trains on.

    Attributes:
        models: The members; ties go to the earlier one.
        gpus: M: number of GPUs.
        gpus_per_node: G: number of GPUs of a node. The last node has fewer where M is not a multiple.
        samples_per_epoch: Samples of an epoch.
        tolerance: δ.
        active_share: α: a flotilla stops when its members that train on have less than this share of its GPUs.
        checkpoint_seconds: What it takes to write checkpoints after a flotilla.
        preprocess_rate: P: samples/s that all CPUs together preprocess; 0: no limit.
        pace: How members of a flotilla advance.
        beyond_peak: Whether members may get more GPUs than they are fastest on.
        name: For people.
        shared: Whether all members that train at the same time share preprocessing, by whatever planner; None: members
            of flotillas and rounds do, others do not.
    """

    models: tuple[EnsembleModel, ...]
    gpus: int
    gpus_per_node: int
    samples_per_epoch: float
    tolerance: RateTolerance = RateTolerance()
    active_share: float = 0.8
    checkpoint_seconds: float = 0.0
    preprocess_rate: float = 0.0
    pace: Pace = Pace.LOCKSTEP
    beyond_peak: BeyondPeak = BeyondPeak.AVOID
    name: str = ""
    shared: bool | None = None

    @property
    def feed(self) -> float:
        """Samples/s that preprocessing can give to a shared feed; infinite where there is no limit."""
        return self.preprocess_rate or float("inf")

    def samples(self) -> list[float]:
        """Samples that each member trains on until it is done."""
        return [model.epochs * self.samples_per_epoch for model in self.models]
