"""Settings of the Scavenger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from malletrain.model.node_needs import MAX_AMOUNTS
from malletrain.model.topology import path_problem
from malletrain.runtime.frozen_settings import FiniteSettings
from malletrain.runtime.notices.settings import ReceiverSettings
from malletrain.scavenger.node_traits import NodeTraitsEntry
from malletrain.scavenger.notifications.notices import NodeNoticeKind
from malletrain.scavenger.sources.schedulers.settings import NodeCheckSettings, PbsSettings, SlurmSettings

_MIB = Annotated[int, Field(ge=1, le=MAX_AMOUNTS["memory_mib"])]


class NodeNotificationSettings(ReceiverSettings):
    """Whom to tell of nodes that are not well."""

    events: tuple[NodeNoticeKind, ...] = Field(
        default=tuple(NodeNoticeKind),
        description="What is told: `quarantined`: work keeps failing on a node; `check-failed`: it has failed the "
        "check before its first worker; `slow`: it counts as slow; `called-slow`: jobs of one owner say that it is.",
    )
    repeat_seconds: float = Field(
        default=6 * 3600.0,
        ge=60,
        le=1e8,
        description="For so long the same is not told again of the same node.",
    )


class ScavengerSettings(FiniteSettings):
    """Section `[scavenger]`: where idle nodes come from, and when they count.

    Fields that end in `_seconds` are wall-clock seconds, those that end in `_s` are seconds of the trace.
    """

    source: Literal["static", "trace", "slurm", "pbs", "slurm+pbs"] = Field(
        default="static",
        description="static: the listed nodes, always idle. trace: a replay of idle fragments. slurm, pbs: what a "
        "batch scheduler leaves idle; slurm+pbs: both at once, each with pools of its own.",
    )
    slurm: SlurmSettings = Field(default_factory=SlurmSettings, description="How Slurm is asked.")
    pbs: PbsSettings = Field(default_factory=PbsSettings, description="How PBS is asked.")
    node_check: NodeCheckSettings = Field(
        default_factory=NodeCheckSettings, description="What a node must have before its first worker starts."
    )
    nodes: tuple[str, ...] = Field(default=("n01",), description="Names of the nodes of the static source.")
    node_traits: dict[str, NodeTraitsEntry] = Field(
        default_factory=dict,
        description="What nodes of the static source are, by name or by several names as Slurm writes them: "
        '"n[1-4]". A node that is named by several entries is what the first of them says.',
    )
    topology: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        max_length=100_000,
        description='Where nodes are: the groups of nodes, from the outermost to the innermost: "n[001-032]" = '
        '["row1", "rack1"]. What a scheduler says of other nodes counts besides.',
    )
    gpu_memory_mib: dict[str, _MIB] = Field(
        default_factory=dict,
        max_length=256,
        description="Memory of a GPU in MiB by its kind, capitals or not, e.g. a100 = 81920, for jobs that need some; "
        "schedulers do not tell it.",
    )
    trace: Path | None = Field(default=None, description="CSV or CSV.gz file of the trace source.")
    trace_nodes: int = Field(default=0, ge=0, description="Only the first nodes of the trace, this many; 0: all.")
    start_s: float = Field(default=0.0, ge=0, description="Second of the trace at which the replay begins.")
    duration_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds of the trace that are replayed; 0: to its end. The nodes idle by then remain so.",
    )
    speed: float = Field(default=1.0, gt=0, le=1e6, description="Seconds of the trace per wall-clock second.")
    resume: bool = Field(
        default=True,
        description="After a kill, go on where the trace is by now if trace, speed and start are the same. False, or "
        "after a graceful end: begin anew.",
    )
    debounce_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="How long a node must be idle before it counts. Wall-clock seconds also for a trace: at speed 60, "
        "10 s are 600 s of the trace. The static source has no debounce.",
    )
    history_path: Path | None = Field(
        default=None,
        description="A trace of earlier idle fragments, from which expected stays are known at the start. For a trace "
        "source it is sped up like the trace.",
    )
    stay_horizon_seconds: float = Field(
        default=3600.0, gt=0, description="How far expected stays look ahead; also the largest."
    )
    reclaim_hold_seconds: float = Field(
        default=60.0, gt=0, description="How long a reclaimed node stays out where the caller does not say."
    )
    release_deadline_seconds: float = Field(
        default=30.0, gt=0, description="What JobManager gets to free reclaimed nodes where the caller has no deadline."
    )

    slow_node_share: float = Field(
        default=0.2,
        gt=0,
        le=100,
        description="A node is slow that takes longer for our own measure than the median of its pool by more than "
        "this, relative to that.",
    )
    quarantine_failures: float = Field(
        default=3.0,
        ge=1,
        description="A node is quarantined after so many failures of work soon after each other.",
    )
    quarantine_half_life_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="Time in which the weight of a failure halves; a quarantine ends as the weights fall.",
    )
    quarantine_longest_seconds: float = Field(default=86400.0, gt=0, description="The longest quarantine.")

    notifications: NodeNotificationSettings = Field(
        default_factory=NodeNotificationSettings, description="Whom to tell of nodes that are not well."
    )

    @field_validator("topology")
    @classmethod
    def _paths(cls, topology: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for names, path in topology.items():
            if expected := path_problem(path):
                raise ValueError(f"expected {expected} for {names}")
        return topology

    @field_validator("nodes")
    @classmethod
    def _names(cls, nodes: tuple[str, ...]) -> tuple[str, ...]:
        for name in nodes:
            if not name or name != name.strip():
                raise ValueError(f"expected names without blanks around them, got {name!r}")
        twice = sorted({name for name in nodes if nodes.count(name) > 1})
        if twice:
            raise ValueError(f"expected each node once, got {twice[0]} twice")
        return nodes
