"""Settings of JobManager."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from malletrain.job_manager.world import Policy


class JobManagerSettings(BaseModel):
    """Limits, graces and pauses; the defaults suit a laptop as well as a cluster's head node."""

    model_config = ConfigDict(extra="forbid")

    max_parallel: int = Field(default=10, ge=1, description="Most jobs that take part in plans at the same time.")
    trainer_python: str = Field(
        default=sys.executable, min_length=1, description="Python interpreter of the training environment."
    )
    backend: Literal["horovod", "torchrun", "command"] = Field(
        default="horovod", description="Launcher backend of jobs that do not name one."
    )
    head_address: str = Field(
        default="127.0.0.1", min_length=1, description="Address of this machine as the nodes see it."
    )
    interfaces: tuple[str, ...] = Field(
        default=("lo",), min_length=1, description="Network interfaces by which the nodes reach each other."
    )
    drain_grace_seconds: float = Field(
        default=1.5, ge=0, le=60, description="What workers on a node that is wanted back get to leave by themselves."
    )
    stop_grace_seconds: float = Field(
        default=5.0, ge=0, le=600, description="What a job that is stopped gets to commit and save a checkpoint."
    )
    rescale_deadline_seconds: float = Field(
        default=60.0,
        gt=0,
        description="A start or rescale not confirmed by then is given up for a restart; a growth gets five times it.",
    )
    stall_seconds: float = Field(
        default=30.0, gt=0, description="A running job that Monitor calls stalled for so long is restarted."
    )
    restart_backoff_seconds: float = Field(
        default=1.0, ge=0, description="Pause before the first restart of a failed job; doubles with every further one."
    )
    restart_backoff_max_seconds: float = Field(default=60.0, ge=0, description="Longest such pause.")
    restart_forgive_seconds: float = Field(
        default=600.0, gt=0, description="After so long a good run, earlier failures no longer count against the job."
    )
    finish_seconds: float = Field(
        default=10.0, gt=0, description="What a trainer that says that it is done gets to end its processes."
    )
    reconcile_seconds: float = Field(
        default=0.5, gt=0, le=10, description="How often the present is compared with what is wanted, events apart."
    )
    stop_jobs_on_exit: bool = Field(
        default=True,
        description="Stop the jobs when JobManager is ended in good order (they start again with it). "
        "False leaves their processes running, as a kill does; the next JobManager finds them again.",
    )

    def policy(self) -> Policy:
        """The part that decisions rest on."""
        return Policy(**{name: getattr(self, name) for name in Policy.__dataclass_fields__})
