"""Settings of Monitor."""

from __future__ import annotations

from dataclasses import fields

from pydantic import Field

from malletrain.monitor.machine.options import MonitorOptions
from malletrain.monitor.stragglers.slow_nodes import StragglerOptions
from malletrain.runtime.frozen_settings import FrozenSettings


class MonitorSettings(FrozenSettings):
    """How Monitor stores, publishes and measures."""

    store_seconds: float = Field(
        default=0.25, gt=0, le=10, description="Time between two writes; records are acknowledged after theirs."
    )
    acknowledgements_per_second: float = Field(
        default=1000.0,
        gt=0,
        description="With more reporters than this each is answered less often. A reporter sends once it is answered.",
    )
    publish_seconds: float = Field(
        default=1.0, gt=0, le=60, description="Time between two messages about a job to its watchers."
    )
    command_seconds: float = Field(
        default=10.0, ge=0, description="How long a command waits for a reporter if none is connected."
    )
    stall_factor: float = Field(
        default=20.0, gt=1, description="A job is stalled after this many usual steps without a record."
    )
    stall_floor_seconds: float = Field(default=60.0, gt=0, description="No job is stalled before this silence.")
    stall_unknown_seconds: float = Field(
        default=600.0, gt=0, description="Silence after which a job is stalled if its usual step is not known."
    )
    warmup_steps: int = Field(
        default=3, ge=0, description="Steps left out of the throughput after a rescale, besides the one with the stall."
    )
    warmup_seconds: float = Field(default=1.0, ge=0, description="Time left out of the throughput after a rescale.")
    window_steps: int = Field(default=256, ge=16, description="Newest steps of a visit to a scale that count.")
    min_steps: int = Field(default=5, ge=1, description="Steps that a throughput needs at least.")
    outlier_fence: float = Field(
        default=5.0, gt=0, description="Steps this many standard deviations (by MAD) off the median are outliers."
    )
    max_outlier_share: float = Field(
        default=0.1,
        ge=0,
        lt=0.5,
        description="A larger share of outliers is normal for the job, and they are kept.",
    )
    cold_gap_seconds: float = Field(
        default=90.0,
        gt=0,
        description="A longer gap is a start from a checkpoint, not a rescale; only while JobManager does not say.",
    )
    stall_median_count: int = Field(
        default=15, ge=1, le=64, description="Newest rescales that the median stall is taken from."
    )
    rest_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Silence after which single steps of a job are forgotten; its points stay.",
    )

    straggler_share: float = Field(
        default=0.25,
        gt=0,
        le=100,
        description="A worker is slow whose own part of a step is longer than that of its job's others by more than "
        "this, relative to theirs.",
    )
    straggler_memory_seconds: float = Field(
        default=86400.0, gt=0, description="How long a node counts as called slow by a job."
    )

    def straggler_options(self) -> StragglerOptions:
        """When workers are slow."""
        return StragglerOptions(self.straggler_share, self.straggler_memory_seconds)

    def options(self) -> MonitorOptions:
        """The settings as Monitor's machine takes them."""
        return MonitorOptions(**{each.name: getattr(self, each.name) for each in fields(MonitorOptions)})
