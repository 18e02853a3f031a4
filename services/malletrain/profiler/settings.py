"""Settings of Profiler."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import Field

from malletrain.profiler.machine.options import ProfilerOptions, ProfilingMode
from malletrain.profiler.machine.profile_scheduler import ProfilingParameters
from malletrain.profiler.machine.scale_selection import ScaleStrategy
from malletrain.runtime.frozen_settings import FrozenSettings


class ProfilerSettings(FrozenSettings):
    """What is assumed of unknown jobs, how profiles are taken, and when watchers are told of changes."""

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
    default_mode: ProfilingMode = Field(
        default=ProfilingMode.NEVER, description="When jobs that do not say are profiled: auto, always or never."
    )
    strategy: ScaleStrategy = Field(
        default=ScaleStrategy.ADAPTIVE,
        description="Which scales are measured: adaptive, every, or fleet (three steps).",
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
        default=180.0, gt=0, description="A profile that has not reached its largest scale by then is queued again."
    )
    retry_seconds: float = Field(default=60.0, ge=0, description="How long it then waits at least.")
    hold_seconds: float = Field(
        default=120.0, gt=0, description="Until when the allocator honours requests if Profiler no longer renews them."
    )
    publish_seconds: float = Field(
        default=0.25, gt=0, le=60, description="Least time between two messages to watchers of profiles."
    )
    save_seconds: float = Field(
        default=2.0, ge=0, le=600, description="Least time between two writes of what was measured of jobs."
    )
    look_seconds: float = Field(
        default=0.25, gt=0, le=10, description="How often running profiles are checked when nothing happens."
    )
    drift_per_hour: float = Field(default=0.02, ge=0, description="Relative error that an hour adds to a point.")
    contradiction: float = Field(
        default=0.1, gt=0, description="Change of a scale's rate, beyond its error, that casts doubt on older points."
    )
    most_error: float = Field(
        default=0.3, gt=0, le=1, description="Points with a larger relative error are left out of the curve."
    )
    fade_seconds: float = Field(default=60.0, gt=0, description="How often curves are recomputed as points age.")
    fleet_nodes: int = Field(default=2, ge=1, description="M_b of the strategy `fleet`, in nodes.")
    family_members: int = Field(default=8, ge=1, description="Jobs of a family whose points are kept.")
    snapshot_seconds: float = Field(
        default=3.0, ge=0, description="After a start, wait so long for Monitor's records before jobs get priors."
    )

    def options(self) -> ProfilerOptions:
        """The settings as Profiler's machine takes them."""
        profiling = ProfilingParameters(**self._named_as(ProfilingParameters))
        return ProfilerOptions(profiling=profiling, **self._named_as(ProfilerOptions))

    def _named_as(self, kind: type[ProfilerOptions | ProfilingParameters]) -> dict[str, Any]:
        return {
            field.name: getattr(self, field.name) for field in fields(kind) if field.name in type(self).model_fields
        }
