"""The Allocator's section of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from malletrain.allocator.forward_time import FORWARD_SECONDS, SURVIVAL_SHARE, ForwardPolicy, ForwardTime
from malletrain.allocator.planner import PlannerOptions
from malletrain.allocator.problem import CostModel, Formulation, ObjectiveMetric


class AllocatorSettings(BaseModel):
    """Settings of the Allocator."""

    model_config = ConfigDict(extra="forbid")

    forward_seconds: float = Field(
        default=FORWARD_SECONDS, gt=0, description="T_fwd: how far ahead a plan looks, in seconds."
    )
    forward_policy: ForwardPolicy = Field(
        default=ForwardPolicy.CONSTANT,
        description="constant: T_fwd is forward_seconds. survival: a share of the nodes' mean stay, by pool. expected: "
        "half of the mean time between changes of a job's scale.",
    )
    forward_share: float = Field(
        default=SURVIVAL_SHARE, gt=0, le=1, description="That share; forward_seconds holds where no stay is known."
    )
    span_pools: bool = Field(default=False, description="Whether a job may have nodes of several pools at once.")
    max_nodes_per_owner: int = Field(
        default=0, ge=0, description="Most nodes of all jobs of one owner together in a plan; 0: no limit."
    )
    cost_model: CostModel = Field(default=CostModel.STALL, description="How rescaling is charged.")
    objective_metric: ObjectiveMetric = Field(
        default=ObjectiveMetric.THROUGHPUT, description="How a job's progress is measured."
    )
    formulation: Formulation = Field(default=Formulation.AUTO, description="Which model solves the problem.")
    time_limit_seconds: float = Field(
        default=5.0, gt=0, le=3600, description="Wall-clock limit of a solve, in seconds."
    )
    coalesce_seconds: float = Field(
        default=0.05, ge=0, le=10, description="How long after an event others may join its plan, in seconds."
    )
    caution: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="How much of a throughput's error is taken off it: 0 believes it, 1 takes the lower bound.",
    )
    replan_seconds: float = Field(
        default=60.0, ge=0, description="A plan for changed curves alone, at most this often, in seconds; 0: never."
    )
    fleet_measuring_seconds: float = Field(
        default=600.0,
        gt=0,
        description="How long a member of a fleet may have GPUs until its rate on so many is known, in seconds. "
        "Afterwards it is planned by what is assumed of it, and not measured on purpose any more.",
    )
    plans_kept: int = Field(default=10_000, ge=1, description="How many of the newest plans are stored.")
    idle_rows_kept: int = Field(
        default=100_000,
        ge=2000,
        description="How many of the newest changes of the idle set are stored, for replay --journal and tune.",
    )

    @property
    def planner_options(self) -> PlannerOptions:
        """The settings that a plan depends on."""
        forward = ForwardTime(self.forward_seconds, self.forward_policy, self.forward_share)
        return PlannerOptions(
            forward, self.cost_model, self.objective_metric, self.span_pools, self.max_nodes_per_owner
        )
