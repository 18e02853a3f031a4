"""What the services have recorded of their own past."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.utilization.definition import MINUTE_S, MinuteUse
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.stalls import MeasuredRescale


@dataclass(frozen=True)
class BelievedJob:
    """What the newest plan with a job believed of it.

    Attributes:
        curve: Its scaling curve.
        scale_up_s: R_up in seconds.
        scale_down_s: R_down in seconds.
    """

    curve: tuple[ScalingPoint, ...]
    scale_up_s: float
    scale_down_s: float


@dataclass(frozen=True)
class MeasuredJob:
    """What Monitor has measured of a job.

    Attributes:
        samples: Samples processed, net of what was rolled back.
        samples_lost: Samples that were processed and rolled back.
        unix_seconds: When its newest batch ended, in seconds since the epoch.
        points: Throughput by scale.
        rescales: Its newest rescales, oldest first.
        first_batches: When the first batch of each process that reported ended, in seconds since the epoch.
        step_s: How long a batch usually takes, in seconds; 0: not known.
    """

    samples: int
    samples_lost: int
    unix_seconds: float
    points: tuple[ScalingPoint, ...]
    rescales: tuple[MeasuredRescale, ...] = ()
    first_batches: tuple[float, ...] = ()
    step_s: float = 0.0


@dataclass(frozen=True)
class RecordedJob:
    """A job with all that is recorded of it.

    Attributes:
        job: As JobManager has stored it.
        events: Its rows in JobManager's journal, oldest first.
        measured: None: Monitor has nothing about it.
        believed: None: no plan that is kept has it.
    """

    job: Job
    events: tuple[JobEvent, ...]
    measured: MeasuredJob | None
    believed: BelievedJob | None

    @property
    def ready_unix(self) -> float:
        """When it was submitted, or from when on it waited for no other job, in seconds since the epoch."""
        after = [event.unix_seconds for event in self.events if event.reason_code is not JobReason.DEPENDENCY]
        return max(self.job.create_time, after[0]) if self.job.spec.dependencies and after else self.job.create_time

    @property
    def end_unix(self) -> float | None:
        """When it ended, in seconds since the epoch; None: it has not."""
        return next((event.unix_seconds for event in self.events if event.to_state.final), None)


@dataclass(frozen=True)
class Journal:
    """The past of a system.

    Attributes:
        idle: Changes of the idle set, oldest first.
        jobs: Jobs in the order of their submission.
        pools: Names of the pools that plans were made for; one or none: all nodes are alike.
        utilization: U by minute as the Allocator has recorded it, oldest first; empty: it has not.
    """

    idle: tuple[IdleRow, ...]
    jobs: tuple[RecordedJob, ...]
    pools: frozenset[str] = frozenset()
    utilization: tuple[MinuteUse, ...] = ()

    @property
    def begin_unix(self) -> float:
        """When the idle set is first known, in seconds since the epoch."""
        return self.idle[0].unix_seconds

    @property
    def end_unix(self) -> float:
        """When something was last recorded, in seconds since the epoch."""
        last = [self.idle[-1].unix_seconds]
        last += [minute.start + MINUTE_S for minute in self.utilization[-1:]]
        for job in self.jobs:
            last += [event.unix_seconds for event in job.events[-1:]]
            last += [job.measured.unix_seconds] if job.measured is not None else []
        return max(last)
