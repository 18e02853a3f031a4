"""Settings of the sources that poll a batch scheduler."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import Field, model_validator

from malletrain.runtime.frozen_settings import FiniteSettings


class NodeCheckSettings(FiniteSettings):
    """Section `[scavenger.node_check]`: what a node must have before its first worker starts.

    Agents check that when they start, on nodes that are held. What can't be found out is nothing against a node.
    """

    enabled: bool = Field(default=True, description="Whether nodes are checked.")
    seconds: float = Field(
        default=3.0,
        gt=0,
        le=60,
        description="How long each node's check may take, without the script; it usually takes a tenth of a second.",
    )
    least_memory_mib: int = Field(default=256, ge=0, description="Memory that must be available, in MiB.")
    most_ecc_errors: int = Field(
        default=0, ge=0, description="Most uncorrected memory errors of a GPU since its driver was loaded."
    )
    folders: tuple[str, ...] = Field(
        default=("/tmp",),
        max_length=16,
        description="Folders on the nodes that must be writable for the services' user.",
    )
    most_clock_seconds: float = Field(
        default=30.0, gt=0, description="By how much a node's clock may differ from the Scavenger's, in seconds."
    )
    script: str = Field(
        default="",
        pattern="^(/.*)?$",
        description="Path on the nodes of a program of your own that is run with the node's name: exit status 0 means "
        "that the node is well. Nobody else may be able to write it. Empty: none is run.",
    )
    script_seconds: float = Field(default=5.0, gt=0, le=10, description="How long that program may take.")
    speed_seconds: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="How long a node's speed is measured at an agent's start, by one core at the lowest priority; 0: "
        "it is not. Never where units are gpus: a main job may be on the node.",
    )
    retry_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86400,
        description="How long a node that is not well is left out before it is checked again; doubles each time.",
    )
    longest_retry_seconds: float = Field(default=3600.0, gt=0, description="The longest such time.")

    def agent_options(self, *, alone: bool = True) -> tuple[str, ...]:
        """The options of an agent that say so.

        Args:
            alone: Whether no main job is on the agent's node.
        """
        if not self.enabled:
            return ()
        return (
            *("--check-seconds", f"{self.seconds:g}", "--check-memory-mib", f"{self.least_memory_mib}"),
            *("--check-ecc-errors", f"{self.most_ecc_errors}"),
            *(word for folder in self.folders for word in ("--check-folder", folder)),
            *(("--check-speed-seconds", f"{self.speed_seconds:g}") if alone and self.speed_seconds else ()),
            *(("--check-script", self.script) if self.script else ()),
            *(("--check-script-seconds", f"{self.script_seconds:g}") if self.script else ()),
        )

    @model_validator(mode="after")
    def _consistent(self) -> NodeCheckSettings:
        if self.longest_retry_seconds < self.retry_seconds:
            raise ValueError("expected longest_retry_seconds of at least retry_seconds")
        return self


class HoldSettings(FiniteSettings):
    """Sections `[scavenger.slurm.hold]` and `[scavenger.pbs.hold]`: how idle nodes are held.

    Placeholders hold nodes: one-node jobs of low priority, which the scheduler ends when it wants a node back.
    """

    queue: str = Field(
        default="", description="Preemptible partition or queue of the placeholders; empty: nodes are watched only."
    )
    ssh: tuple[str, ...] = Field(
        default=(),
        description='Command that starts agents on nodes without placeholders, e.g. ["ssh", "-oBatchMode=yes"]; needs '
        "a Prolog that takes nodes back.",
    )
    python: str = Field(
        default=sys.executable, min_length=1, description="Interpreter of the training environment, on the nodes."
    )
    agents_address: str = Field(
        default="127.0.0.1:50066", pattern=r"^.+:\d+$", description="HOST:PORT on which node agents report."
    )
    head: str = Field(default="", description="The same address as the nodes see it; empty: agents_address.")
    listen: str = Field(default="127.0.0.1", min_length=1, description="Address on which agents serve, on their node.")
    grace_seconds: float = Field(
        default=1.5,
        ge=0,
        le=60,
        description="How long workers may take to leave by themselves when a node is wanted back.",
    )
    shortest_seconds: float = Field(
        default=120.0, ge=60, description="A node that is expected to be idle for less is not held."
    )
    longest_seconds: float = Field(
        default=14400.0,
        ge=60,
        description="The longest time limit of a placeholder; limits are spread down to half of it.",
    )
    patience_seconds: float = Field(
        default=15.0, gt=0, description="A placeholder that has not started by then is cancelled: its node was taken."
    )
    refusal_seconds: float = Field(default=30.0, gt=0, description="How long that node then gets no placeholder.")
    margin_seconds: float = Field(
        default=15.0,
        ge=0,
        le=60,
        description="How long before its time limit, or before a reservation begins, a node is left.",
    )
    standby_memory_mib: int = Field(
        default=2048,
        ge=0,
        le=1 << 20,
        description="Largest share of memory of all standby processes on a node, which fork workers, in MiB, "
        "e.g. 2048; 0: none is kept.",
    )
    stage_out_seconds: float = Field(
        default=0.0,
        ge=0,
        le=600,
        description="How long checkpoints may be copied from a node after its workers have gone, at most; once the "
        "node is wanted back, within grace_seconds. 0: none is.",
    )
    stage_out_mib: int = Field(
        default=0,
        ge=0,
        le=1 << 24,
        description="Most memory of checkpoints of a user that are copied from a node at a time, in MiB; 0: none.",
    )
    give_back_at_exit: bool = Field(
        default=True,
        description="Whether all nodes are given back when the Scavenger ends in good order; else the next Scavenger "
        "finds its placeholders again.",
    )
    surplus_seconds: float = Field(
        default=60.0, gt=0, description="How long a node is held without work when fewer are wanted."
    )
    most_pending: int = Field(default=64, ge=1, description="Most placeholders that wait to start.")
    calm_seconds: float = Field(
        default=15.0,
        ge=0,
        description="How long no node is taken after the scheduler took one back: its job may be about to get others.",
    )
    backoff_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Delay after a placeholder that was refused or ended before its agent reported. Doubles "
        "with each failure in a row. Until one succeeds, only one placeholder is submitted per delay.",
    )
    backoff_max_seconds: float = Field(
        default=600.0, gt=0, description="The longest such delay, and the length of a pause."
    )
    pause_after_failures: int = Field(
        default=5,
        ge=1,
        description="After so many failures in a row submission pauses; then one placeholder is tried per pause.",
    )
    options: tuple[str, ...] = Field(default=(), description="More options of sbatch or qsub, e.g. --account=idle.")
    name: str = Field(default="malletrain", min_length=1, description="Job name of placeholders, to find them again.")
    marks: str = Field(
        default="/run/malletrain",
        min_length=1,
        description="With ssh: folder on the nodes in which a Prolog marks those that have just been taken.",
    )
    log: str = Field(default="/dev/null", min_length=1, description="Where placeholders write, as the nodes see it.")

    @property
    def held(self) -> bool:
        """Whether agents run on the nodes: by placeholders, or by ssh."""
        return bool(self.queue or self.ssh)

    @model_validator(mode="after")
    def _consistent(self) -> HoldSettings:
        if self.queue and self.ssh:
            raise ValueError("expected either queue (placeholders) or ssh, not both")
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError("expected backoff_max_seconds of at least backoff_seconds")
        return self


class PbsHoldSettings(HoldSettings):
    """The section `[scavenger.pbs.hold]`.

    PBS plans the starts of main jobs by the time limits of placeholders, and refuses reservations before their ends.
    """

    longest_seconds: float = Field(
        default=3600.0,
        ge=60,
        description="The longest time limit of a placeholder; limits are spread down to half of it.",
    )


class GpuShareSettings(FiniteSettings):
    """Sections `[scavenger.slurm.gpu_share]` and `[scavenger.pbs.gpu_share]`: what is taken with one GPU."""

    cpus: int = Field(default=0, ge=0, le=4096, description="CPUs; 0: the node's CPUs divided by its GPUs.")
    memory_mib: int = Field(
        default=0, ge=0, le=1 << 30, description="Memory in MiB; 0: the node's memory divided by its GPUs."
    )
    nice: int = Field(
        default=10, ge=0, le=19, description="By how much our processes yield CPU time to others on the node."
    )


class SchedulerSettings(FiniteSettings):
    """Settings of both schedulers. Patterns are `gpu*`, or node lists such as `n[001-032]`."""

    include: tuple[str, ...] = Field(default=(), description="Only nodes of these patterns; none: all.")
    exclude: tuple[str, ...] = Field(default=(), description="No nodes of these patterns.")
    interval_seconds: float = Field(
        default=2.0, ge=0.05, le=3600, description="How often it is asked which nodes are idle."
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0, le=3600, description="How long an answer may take; backfill makes Slurm silent for seconds."
    )
    stale_seconds: float = Field(
        default=30.0,
        gt=0,
        description="When the last good answer is older, no node is offered, and only nodes stay on which a "
        "placeholder of ours lives.",
    )
    longest_pause_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Longest pause after failed queries; the pause doubles with each failure in a row.",
    )
    reservations_interval_seconds: float = Field(
        default=60.0, ge=0.05, description="How often it is asked what is reserved."
    )
    units: Literal["nodes", "gpus"] = Field(
        default="nodes",
        description="What is taken: whole idle nodes, or single idle GPUs, those of partly used nodes included. "
        "GPUs need a queue of placeholders.",
    )
    gpu_share: GpuShareSettings = Field(
        default_factory=GpuShareSettings, description="What is taken with a GPU, where units are gpus."
    )
    hold: HoldSettings = Field(default_factory=HoldSettings, description="How idle nodes are held.")

    @model_validator(mode="after")
    def _gpus_are_held(self) -> SchedulerSettings:
        if self.units == "gpus" and not self.hold.queue:
            raise ValueError("expected hold.queue where units are gpus: placeholders hold single GPUs")
        return self


class SlurmSettings(SchedulerSettings):
    """The section `[scavenger.slurm]`."""

    partitions: tuple[str, ...] = Field(
        default=(),
        description="Partitions whose idle nodes are used. Each is a pool, its nodes with other GPUs another one; "
        "a node belongs to the first.",
    )
    queue_interval_seconds: float = Field(
        default=10.0, ge=0.05, description="How often it is asked for planned starts of pending jobs."
    )
    classes_interval_seconds: float = Field(
        default=600.0, ge=0.05, description="How often it is asked for GPUs, features, CPUs, memory of nodes."
    )
    topology: bool = Field(
        default=False,
        description="Whether it is asked where nodes are (scontrol show topology), as often as for their GPUs.",
    )
    sinfo: str = Field(default="sinfo", min_length=1, description="Path of sinfo.")
    squeue: str = Field(default="squeue", min_length=1, description="Path of squeue.")
    scontrol: str = Field(default="scontrol", min_length=1, description="Path of scontrol.")


class PbsSettings(SchedulerSettings):
    """The section `[scavenger.pbs]`."""

    hold: PbsHoldSettings = Field(default_factory=PbsHoldSettings, description="How idle nodes are held.")
    queues: tuple[str, ...] = Field(
        default=(), description="Only nodes of these queues (vnode's queue or Qlist), or of none; none: all nodes."
    )
    pool: str = Field(default="pbs", description="Name of the pool that these nodes make up.")
    gpu_type_resource: str = Field(default="gpu_type", description="Resource of a vnode that names its kind of GPU.")
    topology_resources: tuple[str, ...] = Field(
        default=(),
        max_length=8,
        description="Resources of a vnode that say where it is, from the outermost to the innermost group, such as "
        'those of node_group_key: ["row", "switch"].',
    )
    gpu_memory_resource: str = Field(
        default="gpu_memory",
        description="Resource of a vnode that is the memory of each of its GPUs, e.g. 40gb; where it has none, "
        "`scavenger.gpu_memory_mib` counts.",
    )
    queue_interval_seconds: float = Field(
        default=30.0, ge=0.05, description="How often it is asked for estimated starts; qstat -f is expensive."
    )
    pbsnodes: str = Field(default="pbsnodes", min_length=1, description="Path of pbsnodes.")
    qstat: str = Field(default="qstat", min_length=1, description="Path of qstat.")
    pbs_rstat: str = Field(default="pbs_rstat", min_length=1, description="Path of pbs_rstat.")
