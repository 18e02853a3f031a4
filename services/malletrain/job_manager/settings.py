"""Settings of JobManager."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from malletrain.job_manager.admission_window import LONGEST_WINDOW, MOST_BURST_BUFFER_GB, MOST_PLACES, AdmissionRule
from malletrain.job_manager.notifications.settings import NotificationSettings
from malletrain.job_manager.state import ManagerPolicy


class JobManagerSettings(BaseModel):
    """Limits, graces and pauses. The defaults suit a laptop as well as the head node of a cluster."""

    model_config = ConfigDict(extra="forbid")

    max_parallel: int = Field(default=10, ge=1, description="Most jobs that take part in plans at the same time.")
    max_parallel_per_owner: int = Field(
        default=0, ge=0, description="Most jobs of one owner that take part in plans at the same time; 0: no limit."
    )
    fair_share_half_life_seconds: float = Field(
        default=604_800.0,
        ge=0,
        le=1e9,
        description="After this time half of what an owner has used still counts (7 d); 0: no fair share.",
    )
    burst_buffer_gb: int = Field(
        default=0,
        ge=0,
        le=MOST_BURST_BUFFER_GB,
        description="Quota of burst buffer, of which admitted jobs hold what they ask for until they end, in GB; 0: "
        "none is granted.",
    )
    admission: AdmissionRule = Field(
        default=AdmissionRule.FIFO,
        description="Who gets burst buffer: `fifo`: first come, first served; `window`: the selection of the first "
        "jobs that uses places and burst buffer best (BBSched).",
    )
    window: int = Field(
        default=20,
        ge=1,
        le=LONGEST_WINDOW,
        description="How many of the jobs that ask for burst buffer are looked at together, with `window`.",
    )
    starvation_bound: int = Field(
        default=50,
        ge=1,
        le=1_000_000,
        description="How many times a job may be passed over, with `window`; then it comes before all others.",
    )
    max_jobs_per_owner: int = Field(
        default=10_000, ge=1, description="Most jobs of one owner that have not ended; operators are bound by it, too."
    )
    max_submissions_per_second: float = Field(
        default=50.0,
        gt=0,
        le=1_000_000,
        description="Most submissions of one owner in a second; as many as in four seconds may come at once.",
    )
    trainer_python: str = Field(
        default=sys.executable, min_length=1, description="Python interpreter of the training environment."
    )
    run_as: Literal["service", "owner"] = Field(
        default="service",
        description="As whom jobs run: the account that runs the services, or each as its owner, for services and "
        "agents that are started as root.",
    )
    jobs_dir: Path | None = Field(
        default=None,
        description="Folder of the jobs' folders, which all nodes reach by the same path; by default `jobs` in the "
        "state folder. Jobs that run as their owners need one outside of it.",
    )
    min_uid: int = Field(
        default=1000, ge=1, description="Accounts with smaller numbers, such as those of daemons, run no jobs."
    )
    backend: Literal["horovod", "torchrun", "command"] = Field(
        default="horovod", description="Launcher backend of jobs that do not name one."
    )
    head_address: str = Field(
        default="127.0.0.1", min_length=1, description="Address of this machine as the nodes see it."
    )
    standby_memory_mib: int = Field(
        default=2048,
        ge=0,
        le=1 << 20,
        description="Largest share of memory of JobManager's standby processes together, from which supervisors are "
        "forked, and of that of each supervisor on this machine, from which workers are, in MiB, e.g. 2048; 0: none is "
        "kept.",
    )
    keep_supervisor_seconds: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="How long the supervisor of a job that has lost its last node stays without workers, so that its "
        "next node costs no start of it; 0: it ends at once.",
    )
    interfaces: tuple[str, ...] = Field(
        default=("lo",), min_length=1, description="Network interfaces by which the nodes reach each other."
    )
    drain_grace_seconds: float = Field(
        default=1.5, ge=0, le=60, description="How long workers on a node that leaves get to end by themselves."
    )
    stop_grace_seconds: float = Field(
        default=5.0, ge=0, le=600, description="How long a job that is stopped gets to commit and save a checkpoint."
    )
    rescale_deadline_seconds: float = Field(
        default=60.0,
        gt=0,
        description="A job whose start or rescale is not confirmed by then is restarted; a growth gets five times it. "
        "It doubles with each restart that counts, three times at most.",
    )
    stall_seconds: float = Field(
        default=30.0,
        gt=0,
        description="A running job that Monitor has called stalled for so long is restarted.",
    )
    restart_backoff_seconds: float = Field(
        default=1.0, ge=0, description="Pause before the first restart of a failed job; doubles with every further one."
    )
    restart_backoff_max_seconds: float = Field(default=60.0, ge=0, description="Longest such pause.")
    restart_forgive_seconds: float = Field(
        default=600.0, gt=0, description="Failures no longer count against a job that has trained for so long since."
    )
    finish_seconds: float = Field(
        default=10.0, gt=0, description="How long a trainer that says that it is done gets to end its processes."
    )
    reconcile_seconds: float = Field(
        default=0.5,
        gt=0,
        le=10,
        description="Time between two checks of limits and repetitions of effects.",
    )
    progress_seconds: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="Time between two writes of the jobs' samples, as far as these decide nothing.",
    )
    keep_ended_jobs_days: float = Field(
        default=90.0,
        ge=0,
        le=100_000,
        description="Days for which a job that has ended is kept: its rows in the databases, and the logs in its "
        "folder; 0: for ever. Checkpoints and what else the job has placed there are never deleted.",
    )
    stop_jobs_on_exit: bool = Field(
        default=True,
        description="Stop the jobs when JobManager ends in good order; they start again with the next one. "
        "False leaves their processes running, and the next JobManager adopts them.",
    )

    notifications: NotificationSettings = Field(
        default_factory=NotificationSettings, description="Whom to tell what has become of jobs."
    )

    @field_validator("admission")
    @classmethod
    def _few_places(cls, value: AdmissionRule, info: ValidationInfo) -> AdmissionRule:
        if value is AdmissionRule.WINDOW and info.data.get("max_parallel", 1) > MOST_PLACES:
            raise ValueError(f"expected fifo with more than {MOST_PLACES} places (job_manager.max_parallel)")
        return value

    def policy(self) -> ManagerPolicy:
        """The part that the state machine needs."""
        return ManagerPolicy(**{name: getattr(self, name) for name in ManagerPolicy.__dataclass_fields__})
