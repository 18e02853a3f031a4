"""What happens to Profiler (stimuli), and what it has others do (effects)."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.profiler.machine.curve_estimator import JobMeasurements, JobProfile
from malletrain.profiler.machine.job_views import ReportedJob
from malletrain.profiler.machine.profile_scheduler import ProfilingState


@dataclass(frozen=True)
class Started:
    """Profiler begins to follow its peers."""


@dataclass(frozen=True)
class JobsReported:
    """Jobs have changed.

    Attributes:
        jobs: The jobs as they are now.
        snapshot: Whether these are all.
    """

    jobs: tuple[ReportedJob, ...]
    snapshot: bool = False


@dataclass(frozen=True)
class ScalingReported:
    """Monitor has measured jobs.

    Attributes:
        records: All that is measured of each of these jobs.
    """

    records: tuple[tuple[str, JobMeasurements], ...]


@dataclass(frozen=True)
class NodesReported:
    """Idle nodes have changed.

    Attributes:
        joined: Names and pools of nodes that have joined.
        left: Names of nodes that have left before.
        snapshot: Whether those that have joined are all.
    """

    joined: tuple[tuple[str, str], ...]
    left: tuple[str, ...] = ()
    snapshot: bool = False


@dataclass(frozen=True)
class ProfileRequested:
    """A user wants a job to be profiled."""

    job_id: str


@dataclass(frozen=True)
class ReadRequested:
    """A profile is about to be read: what has been reported is worked in at once."""


@dataclass(frozen=True)
class Due:
    """The time that the machine has waited for has come."""


Stimulus = Started | JobsReported | ScalingReported | NodesReported | ProfileRequested | ReadRequested | Due


@dataclass(frozen=True)
class PublishProfiles:
    """Tell watchers of profiles that have changed."""

    profiles: tuple[JobProfile, ...]


@dataclass(frozen=True)
class CountRuns:
    """Runs have taken a step, which metrics count."""

    before: ProfilingState
    after: ProfilingState


@dataclass(frozen=True)
class StoreChanges:
    """Store what has changed of runs.

    Attributes:
        with_points: Whether to store what was measured, too.
    """

    with_points: bool


@dataclass(frozen=True)
class WarnOfMonitor:
    """Monitor has not been reached in time; profiles are published without its records."""


Effect = PublishProfiles | CountRuns | StoreChanges | WarnOfMonitor
