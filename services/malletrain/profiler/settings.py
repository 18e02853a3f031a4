"""Settings of Profiler."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ProfilerSettings(BaseModel):
    """What Profiler believes before anything is known, and when it tells others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prior_rate: float = Field(
        default=1.0, gt=0, description="Samples per second of an unknown job on 1 node while no other job is known."
    )
    prior_exponent: float = Field(
        default=0.9, gt=0, le=1, description="Throughput of an unknown job grows as nodes to this power."
    )
    prior_weight: float = Field(
        default=0.25, gt=0, description="How much measured scales must differ (squared, in log nodes) to outweigh it."
    )
    scale_up_seconds: float = Field(default=2.0, ge=0, description="Stall of a growth while nothing is known.")
    scale_down_seconds: float = Field(default=1.0, ge=0, description="Stall of a shrink while nothing is known.")
    pair_stall_weight: float = Field(
        default=2.0,
        gt=0,
        description="How many measured rescales between two scales it takes to outweigh R_up, R_down.",
    )
    least_change: float = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="Relative change of a figure that must be exceeded before watchers are told.",
    )
    least_stall_change_seconds: float = Field(
        default=0.1, ge=0, description="Change of a stall that must be exceeded as well before watchers are told."
    )
    snapshot_seconds: float = Field(
        default=3.0, ge=0, description="After a start, wait so long for Monitor's records before jobs get priors."
    )
