"""What happens to Monitor (stimuli), and what it has others do (effects)."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.monitor.machine.throughput import JobSpan
from malletrain.monitor.machine.trackers import JobScaling, StoredJob


@dataclass(frozen=True)
class BatchesReported:
    """Reporters have sent records; they may have sent them before.

    Attributes:
        batches: In the order in which they arrived; may be empty.
    """

    batches: tuple[ReportedBatch, ...]


@dataclass(frozen=True)
class ScalesCommanded:
    """JobManager tells which scales jobs were commanded last, the same ones again included.

    Attributes:
        commands: The newest command of each of these jobs.
    """

    commands: tuple[tuple[str, ScaleCommand], ...]


@dataclass(frozen=True)
class JobsPlaced:
    """How near each other the nodes of jobs are has changed.

    Attributes:
        spans: Of each of these jobs; without nodes, of one that has none or has ended.
    """

    spans: tuple[tuple[str, JobSpan], ...]


@dataclass(frozen=True)
class JobsKept:
    """These are all jobs that there are: commands of others will not be explained by records any more."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True)
class JobsForgotten:
    """These jobs are to be forgotten."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True)
class PublishDue:
    """Watchers are to be told what has changed."""


Stimulus = BatchesReported | ScalesCommanded | JobsPlaced | JobsKept | JobsForgotten | PublishDue


@dataclass(frozen=True)
class StoreJobs:
    """Store jobs. What reporters have sent is acknowledged after that.

    Attributes:
        jobs: Those that have changed, each as it is now; may be empty.
        forgotten: Jobs of which all rows go before that.
    """

    jobs: tuple[StoredJob, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True)
class CountRecords:
    """Records have been counted, which metrics tell.

    Attributes:
        records: How many have arrived, those sent twice included.
        dropped: How many more reporters had to drop.
    """

    records: int
    dropped: int


@dataclass(frozen=True)
class CountRescales:
    """Rescales have been measured, which metrics tell."""

    rescales: tuple[MeasuredRescale, ...]


@dataclass(frozen=True)
class PublishProgress:
    """Tell watchers of the progress of these jobs."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True)
class PublishScaling:
    """Tell watchers what has been measured of jobs."""

    records: tuple[JobScaling, ...]


Effect = StoreJobs | CountRecords | CountRescales | PublishProgress | PublishScaling
