"""Settings of JobManager."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from malletrain.common.job_limits import MAX_PHASE_SECONDS, JobLimits
from malletrain.job_manager.charging import ChargeRate
from malletrain.job_manager.machine.admission import MAX_BURST_BUFFER_GB, MAX_PLACES, MAX_WINDOW, AdmissionRule
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.notifications.notices import NoticeKind
from malletrain.job_manager.projects import PROJECT_NAME, PROJECT_NAME_IN_WORDS, ProjectRule
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.notices.settings import ReceiverSettings
from malletrain.v1 import resources_pb2


class NotificationSettings(ReceiverSettings):
    """Whom to tell what has become of jobs."""

    events: tuple[NoticeKind, ...] = Field(
        default=(NoticeKind.COMPLETED, NoticeKind.FAILED, NoticeKind.WAITING),
        description="What is told: `completed`, `failed`, `cancelled`, and `waiting`: a job has had no nodes for "
        "`waiting_seconds`.",
    )
    waiting_seconds: float = Field(
        default=3600.0, gt=0, le=1e8, description="After how long without nodes a job is said to be waiting."
    )


_CURRENCY = re.compile(r"[A-Za-z][A-Za-z -]*\Z")


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
        le=MAX_BURST_BUFFER_GB,
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
        le=MAX_WINDOW,
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
        description="Most jobs that one owner submits in a second, in one call or many; as many as in four seconds may "
        "come at once.",
    )
    max_mib_per_owner: int = Field(
        default=128,
        ge=1,
        le=1 << 20,
        description="What the jobs of one owner may take in the database, those that have ended as well, in MiB. From "
        "three quarters of it on, the oldest that have ended are removed before `keep_ended_jobs_days` are over.",
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
        default="horovod", description="Launcher backend of jobs that name none, where their script does not show it."
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
    accept_open_store: bool = Field(
        default=False,
        description="Whether jobs of `torchrun` run where every account of this machine could reach torch's store, "
        "since the kernel has neither packet filters nor signed connections for the account of the job.",
    )
    interfaces: tuple[str, ...] = Field(
        default=("lo",), min_length=1, description="Network interfaces by which the nodes reach each other."
    )
    drain_grace_seconds: float = Field(
        default=1.5, ge=0, le=60, description="How long workers on a node that leaves get to end by themselves."
    )
    longest_release_grace_seconds: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Longest grace that a job may ask for on a node that leaves: the main scheduler waits for it.",
    )
    longest_leave_grace_seconds: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Longest time that a job may ask for to save and leave when all its workers start again at another "
        "scale: other jobs wait for nodes that it gives up.",
    )
    stop_grace_seconds: float = Field(
        default=5.0, ge=0, le=600, description="How long a job that is stopped gets to commit and save a checkpoint."
    )
    rescale_deadline_seconds: float = Field(
        default=60.0,
        gt=0,
        description="A job whose start or rescale is not confirmed by then is restarted if its processes hang, as "
        "below, or its limit of a start is over. A growth gets five times as long. It doubles with each restart that "
        "counts, three times at most.",
    )
    stall_seconds: float = Field(
        default=90.0,
        gt=0,
        description="A job without batches is restarted if its processes have waited for each other for so long: they "
        "do nothing, and one waits for a lock without a time limit.",
    )
    idle_seconds: float = Field(
        default=600.0,
        gt=0,
        description="A job without batches is restarted if its processes have done nothing for so long, unless a limit "
        "that it has set itself allows more.",
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
    projects: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        max_length=10_000,
        description="Users who may have jobs accounted to each project, `*` for all; none: the projects of a user are "
        "its Unix groups on this machine.",
    )
    project_required: bool = Field(
        default=False, description="Whether a job without a project is refused when it is submitted."
    )
    charge_rates: tuple[ChargeRate, ...] = Field(
        default=(),
        max_length=1000,
        description="What usage is charged with, by ascending months; none: nothing is charged.",
    )
    currency: str = Field(
        default="",
        max_length=16,
        description="Currency of these charges, or whatever they are counted in, e.g. EUR or credits.",
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
        if value is AdmissionRule.WINDOW and info.data.get("max_parallel", 1) > MAX_PLACES:
            raise ValueError(f"expected fifo with more than {MAX_PLACES} places (job_manager.max_parallel)")
        return value

    @field_validator("projects")
    @classmethod
    def _names_of_projects(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if not all(map(PROJECT_NAME.match, value)):
            raise ValueError(f"expected names of projects of {PROJECT_NAME_IN_WORDS}")
        return value

    @field_validator("currency")
    @classmethod
    def _name_of_currency(cls, value: str) -> str:
        if value and not _CURRENCY.match(value):
            raise ValueError("expected letters, and blanks and hyphens between them, e.g. EUR")
        return value

    @field_validator("charge_rates")
    @classmethod
    def _in_order(cls, value: tuple[ChargeRate, ...]) -> tuple[ChargeRate, ...]:
        months = [rate.month for rate in value]
        if months != sorted(set(months)):
            raise ValueError("expected ascending values of from_month, each once")
        return value

    @property
    def project_rule(self) -> ProjectRule:
        """Which projects jobs may have."""
        return ProjectRule(self.projects, self.project_required)

    @property
    def meters_usage(self) -> bool:
        """Whether it is kept what jobs use: always. Replays and simulations do without."""
        return True

    def longest_graces(self) -> LongestGraces:
        """What jobs may ask for."""
        return LongestGraces(self.longest_release_grace_seconds, self.longest_leave_grace_seconds)

    @property
    def max_stop_grace_seconds(self) -> float:
        """The longest that a job which is stopped may have to save, as `stop_grace` of the machine's effects."""
        return max(self.stop_grace_seconds, self.drain_grace_seconds, self.longest_release_grace_seconds)

    @property
    def idle_report_seconds(self) -> float:
        """How long processes must do nothing until supervisors report it."""
        return min(30.0, self.stall_seconds / 2, self.idle_seconds / 2)

    @property
    def distrusts_supervisors(self) -> bool:
        """Whether supervisors run as jobs' owners, who may have them say what they like."""
        return self.run_as == "owner"

    def policy(self) -> ManagerPolicy:
        """The part that the state machine needs."""
        return ManagerPolicy(**{name: getattr(self, name) for name in ManagerPolicy.__dataclass_fields__})


_PHASES = ("start_seconds", "step_seconds", "evaluation_seconds", "save_seconds")


@dataclass(frozen=True)
class LongestGraces:
    """What the operator allows of that by which jobs delay nodes, in seconds.

    Attributes:
        release: At a release of a node.
        leave: At a change of scale for which all workers are started again.
    """

    release: float = 30.0
    leave: float = 600.0


DEFAULT_GRACES = LongestGraces()


def check_limits(at: str, limits: resources_pb2.JobLimits, maxima: LongestGraces) -> JobLimits:
    """The limits of a submission.

    Args:
        at: Path of the field.
        limits: What was submitted.
        maxima: What the operator allows.

    Raises:
        InvalidInputError: one of them is no duration, or beyond its bound.
    """
    for name in _PHASES:
        _check(f"{at}.{name}", getattr(limits, name), MAX_PHASE_SECONDS, "30 days")
    bound = "the operator's bound (job_manager.longest_{}_grace_seconds)"
    _check(f"{at}.release_grace_seconds", limits.release_grace_seconds, maxima.release, bound.format("release"))
    _check(f"{at}.leave_grace_seconds", limits.leave_grace_seconds, maxima.leave, bound.format("leave"))
    return JobLimits(**{name: getattr(limits, name) for name in JobLimits.__dataclass_fields__})


def _check(field: str, seconds: float, max_seconds: float, what: str) -> None:
    if not math.isfinite(seconds) or not 0 <= seconds <= max_seconds:
        raise InvalidInputError(field, f"0 to {max_seconds:g} seconds, {what}; 0 for the default", seconds)
