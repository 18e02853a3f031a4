"""Settings of the Allocator."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from malletrain.allocator.problem import CostModel, Formulation, ObjectiveMetric


class AllocatorSettings(BaseModel):
    """How the Allocator decides."""

    model_config = ConfigDict(extra="forbid")

    forward_seconds: float = Field(default=120.0, gt=0, description="T_fwd: how far ahead a plan looks, in seconds.")
    cost_model: CostModel = Field(default=CostModel.STALL, description="How rescaling is charged.")
    objective_metric: ObjectiveMetric = Field(
        default=ObjectiveMetric.THROUGHPUT, description="What a job's progress is worth."
    )
    formulation: Formulation = Field(default=Formulation.AUTO, description="Which model solves the problem.")
    time_limit_seconds: float = Field(
        default=5.0, gt=0, le=3600, description="Wall-clock limit of a solve, in seconds."
    )
    coalesce_seconds: float = Field(
        default=0.05, ge=0, le=10, description="How long after an event others may join its plan, in seconds."
    )
    replan_seconds: float = Field(
        default=60.0, ge=0, description="A plan for changed curves alone, at most this often, in seconds; 0: never."
    )
    plans_kept: int = Field(default=10_000, ge=1, description="How many of the newest plans are stored.")
