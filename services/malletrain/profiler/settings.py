"""Settings of Profiler."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from malletrain.profiler.desk import Pace
from malletrain.profiler.modes import Mode
from malletrain.profiler.sizes import Strategy


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
    default_mode: Mode = Field(
        default=Mode.NEVER, description="For jobs that do not say: auto, always, or never measure curves on purpose."
    )
    strategy: Strategy = Field(
        default=Strategy.ADAPTIVE, description="Which scales are measured: adaptive, every, or fleet (three steps)."
    )
    target_error: float = Field(
        default=0.05, gt=0, lt=1, description="A scale is measured until its rate's 95 % interval is this narrow."
    )
    curve_error: float = Field(
        default=0.05, gt=0, lt=1, description="Where the fitted shapes agree to this, no further scale is measured."
    )
    least_steps: int = Field(default=8, ge=1, description="Steps at a scale before it counts as measured.")
    visit_seconds: float = Field(default=60.0, gt=0, description="Longest time at one scale of a profile.")
    least_top_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A profile begins when it can get this share of the job's largest scale (or of the idle nodes).",
    )
    climb_seconds: float = Field(
        default=180.0, gt=0, description="A profile that has not reached its largest scale by then waits again."
    )
    retry_seconds: float = Field(default=60.0, ge=0, description="How long it then waits at least.")
    hold_seconds: float = Field(
        default=120.0, gt=0, description="How long the allocator holds jobs for a Profiler it hears nothing of."
    )
    look_seconds: float = Field(default=0.25, gt=0, le=10, description="How often runs are looked at, events apart.")
    drift_per_hour: float = Field(default=0.02, ge=0, description="Relative error that an hour adds to a point.")
    contradiction: float = Field(
        default=0.1, gt=0, description="Change of a scale's rate, beyond its error, that casts doubt on older points."
    )
    most_error: float = Field(
        default=0.3, gt=0, le=1, description="Points with a larger relative error are left out of the curve."
    )
    fade_seconds: float = Field(default=60.0, gt=0, description="How often curves are made anew as points age.")
    fleet_nodes: int = Field(default=2, ge=1, description="M_b of the strategy `fleet`, in nodes.")
    family_members: int = Field(default=8, ge=1, description="Jobs of a family whose points are kept.")
    snapshot_seconds: float = Field(
        default=3.0, ge=0, description="After a start, wait so long for Monitor's records before jobs get priors."
    )

    def pace(self) -> Pace:
        """The part that runs rest on."""
        return Pace(**{name: getattr(self, name) for name in Pace.__dataclass_fields__})
