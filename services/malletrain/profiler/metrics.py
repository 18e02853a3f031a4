"""Metrics of the Profiler: runs, what is known of the curves, and what watchers are told."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from malletrain.profiler.machine.curve_estimator import JobProfile
from malletrain.profiler.machine.points import CurveSource
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.machine.runs import ProfileRunState
from malletrain.runtime.metrics.service_metrics import COUNTER, ServiceMetrics


@dataclass(frozen=True)
class ProfilerSnapshot:
    """What is told at a scrape.

    Attributes:
        curves: Number of jobs with a curve.
        points: Number of their points by origin.
        runs: Number of their newest runs by state.
    """

    curves: int = 0
    points: Mapping[CurveSource, int] = field(default_factory=dict)
    runs: Mapping[ProfileRunState, int] = field(default_factory=dict)

    @classmethod
    def of(cls, profiles: Iterable[JobProfile], state: ProfilingState) -> ProfilerSnapshot:
        """The figures of profiles and runs."""
        known = list(profiles)
        points = Tally(point.source for profile in known for point in profile.points)
        return cls(len(known), points, Tally(run.state for run in state.runs.values()))


class ProfilerMetrics:
    """The metrics of one Profiler.

    Attributes:
        store_failures: Writes that failed.
    """

    def __init__(self) -> None:
        self._publications = COUNTER("malletrain_profiler_publications", "Messages with changed profiles to watchers.")
        self._published = COUNTER("malletrain_profiler_profiles_published", "Changed profiles in these messages.")
        self._ended = COUNTER("malletrain_profiler_runs_completed", "Runs that measured all they were to.")
        self.store_failures = COUNTER("malletrain_profiler_store_failures", "Writes that failed and are tried again.")

    def register(self, metrics: ServiceMetrics, now: Callable[[], ProfilerSnapshot]) -> None:
        """Add them to those of the service; present values are asked for at each scrape.

        Raises:
            RuntimeError: no event loop is running.
        """
        metrics.add(*vars(self).values())
        metrics.watch(now, _render, ProfilerSnapshot())

    def note_published(self, profiles: int) -> None:
        """Watchers were told of so many profiles."""
        self._publications.inc()
        self._published.inc(profiles)

    def note_step(self, before: ProfilingState, after: ProfilingState) -> None:
        """The runs have taken a step."""
        for job_id, run in after.runs.items():
            old = before.runs.get(job_id)
            if old is not None and old.state.active and run.state is ProfileRunState.DONE:
                self._ended.inc()


def _render(snapshot: ProfilerSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("malletrain_profiler_curves", "Jobs with a scaling curve.", snapshot.curves)
    points = GaugeMetricFamily(
        "malletrain_profiler_curve_points",
        "Points of these curves by origin: prior, declared, measured, extrapolated or family.",
        labels=["source"],
    )
    for source in CurveSource:
        points.add_metric([source.name.lower()], snapshot.points.get(source, 0))
    runs = GaugeMetricFamily(
        "malletrain_profiler_runs", "The newest profile run of each job, by state.", labels=["state"]
    )
    for state in ProfileRunState:
        runs.add_metric([state.value.lower()], snapshot.runs.get(state, 0))
    yield from (points, runs)
