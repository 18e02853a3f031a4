"""What a replay is asked to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from malletrain.allocator.horizon import SURVIVAL_SHARE, Forward, ForwardPolicy
from malletrain.allocator.problem import CostModel, ObjectiveMetric
from malletrain.runtime.errors import InvalidInputError


class Policy(StrEnum):
    """Who decides about the nodes."""

    MILP = "milp"
    EQUAL = "equal"
    FIXED = "fixed"


class Accounting(StrEnum):
    """When jobs arrive and end: when it happens, or at the next node event as in BFTrainer's evaluation."""

    EVENT = "event"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a replay.

    Attributes:
        duration_s: Seconds of the trace to replay.
        policy: Who decides: `milp` the production allocator, `equal` BFTrainer's baseline, `fixed` exact size or none.
        forward_s: T_fwd in seconds.
        forward_policy: Where T_fwd comes from; with `survival`, forward_s holds until the first fragment has ended.
        forward_share: With `survival`, what part of the nodes' mean expected stay it is.
        rank_by_stay: Growths take the nodes that are expected to stay longest, shrinks give up those expected to leave
            first; otherwise the trace's order of nodes decides.
        max_parallel: Jobs that may take part at once.
        accounting: When jobs arrive and end.
        cost_model: What the allocator believes that rescaling costs.
        charge: What rescaling does cost here; None: what the allocator believes.
        metric: What progress is worth to the allocator.
        commit_s: Seconds between two commits of a job: with `stall`, a preemption loses what was done since the last.
            0: nothing is lost.
        fixed_nodes: Size of every job under `fixed`; None: the job's max_nodes.
        paper_quirks: Follow the published code where it differs from the paper (docs/replay.md).
        free: Rescaling costs nothing, and the allocator knows: the bound of any allocator on the same events.
    """

    duration_s: float
    policy: Policy = Policy.MILP
    forward_s: float = 120.0
    forward_policy: ForwardPolicy = ForwardPolicy.CONSTANT
    forward_share: float = SURVIVAL_SHARE
    rank_by_stay: bool = True
    max_parallel: int = 10
    accounting: Accounting = Accounting.EVENT
    cost_model: CostModel = CostModel.STALL
    charge: CostModel | None = None
    metric: ObjectiveMetric = ObjectiveMetric.THROUGHPUT
    commit_s: float = 5.0
    fixed_nodes: int | None = None
    paper_quirks: bool = False
    free: bool = False

    def __post_init__(self) -> None:
        """Check the figures.

        Raises:
            InvalidInputError: one can't be used; names the option.
        """
        for option, value in (("--hours", self.duration_s), ("--forward", self.forward_s)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidInputError(option, "a finite number above 0", value)
        if not 0 < self.forward_share <= 1:
            raise InvalidInputError("--forward-share", "above 0 and at most 1", self.forward_share)
        if not (math.isfinite(self.commit_s) and self.commit_s >= 0):
            raise InvalidInputError("--commit-seconds", "a finite number, at least 0", self.commit_s)
        if self.max_parallel < 1:
            raise InvalidInputError("--max-parallel", "at least 1", self.max_parallel)
        if self.fixed_nodes is not None and self.fixed_nodes < 1:
            raise InvalidInputError("--fixed-nodes", "at least 1", self.fixed_nodes)

    @property
    def forward(self) -> Forward:
        """How to come by T_fwd."""
        return Forward(self.forward_s, self.forward_policy, self.forward_share)

    @property
    def charged(self) -> CostModel:
        """What rescaling costs here."""
        return self.charge or self.cost_model
