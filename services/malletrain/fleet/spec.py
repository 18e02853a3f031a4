"""What the members of a fleet have in common."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.fleet.problem import BeyondPeak, FleetPlanner, Pace


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """What the members of a fleet have in common, with defaults filled in.

    Attributes:
        name: For people.
        max_nodes: Most nodes of all members together.
        planner: Who divides the GPUs.
        gpus_per_node: GPUs of each node that members may have; 0: as many as it has.
        rate_tolerance: δ as a share of the reference rate.
        active_share: α: a flotilla stops when its members that train on have less than this share of its GPUs.
        samples_per_epoch: Samples of an epoch; 0: not known.
        preprocess_rate: Samples per second that all CPUs together preprocess; 0: no limit.
        pace: How members of a flotilla advance.
        beyond_peak: Whether members may get more GPUs than they are fastest on.
        checkpoint_seconds: What it takes to write checkpoints after a flotilla; 0: no longer than a rescale stalls.
        feed: MODULE:FUNCTION of which members share samples; empty: each prepares its own; None: the scripts decide,
            and only flotillas are reckoned to share.
    """

    name: str = ""
    max_nodes: int = 1
    planner: FleetPlanner = FleetPlanner.AUTO
    gpus_per_node: int = 0
    rate_tolerance: float = 0.11
    active_share: float = 0.8
    samples_per_epoch: float = 0.0
    preprocess_rate: float = 0.0
    pace: Pace = Pace.LOCKSTEP
    beyond_peak: BeyondPeak = BeyondPeak.AVOID
    checkpoint_seconds: float = 0.0
    feed: str | None = None

    @property
    def shared(self) -> bool | None:
        """Whether members that train at the same time share preprocessing, by whatever planner; None: not known."""
        return None if self.feed is None else bool(self.feed)

    def gpus_of(self, gpus: int) -> int:
        """How many GPUs of a node members may have.

        Args:
            gpus: How many the node has, as far as is known; 0: none is known of. What the fleet says then holds, so
                that nodes without GPUs have places for members, too.
        """
        wanted = self.gpus_per_node
        return min(wanted or gpus, gpus) if gpus else max(1, wanted)
