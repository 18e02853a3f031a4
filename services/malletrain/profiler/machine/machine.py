"""Profiler as a machine: stimuli in, effects out; without I/O, and without a clock of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from malletrain.profiler.machine.curve_estimator import CurveEstimator
from malletrain.profiler.machine.job_views import JobViews, ReportedJob, without_fleets
from malletrain.profiler.machine.options import ProfilerOptions
from malletrain.profiler.machine.profile_scheduler import ClusterView, ProfilingState, advance, changed_jobs
from malletrain.profiler.machine.profiling_policy import CurveBasedPolicy
from malletrain.profiler.machine.runs import ProfileRunState
from malletrain.profiler.machine.stimuli import (
    CountRuns,
    Due,
    Effect,
    JobsReported,
    NodesReported,
    ProfileRequested,
    PublishProfiles,
    ReadRequested,
    ScalingReported,
    Started,
    Stimulus,
    StoreChanges,
    WarnOfMonitor,
)
from malletrain.runtime.errors import InvalidInputError, NotFoundError, quote
from malletrain.runtime.kernel.documents import DERIVED
from malletrain.runtime.kernel.recording import Moment

Effects = tuple[Effect, ...]

_MAX_REST_SECONDS = 2.0
_PATIENCE_SECONDS = 0.1
"""How long news of jobs that are known wait: a leave calls for a release first, and for a plan 50 ms later."""


@dataclass
class ProfilerMachine:
    """Decides what is believed of each job's curve, who is profiled, and when this is published and stored.

    The state changes in place; stimuli are handled one at a time.

    Attributes:
        options: The operator's choices.
        curves: The curves of all jobs.
        runs: All runs, and what is asked of the Allocator.
        jobs: All jobs that have not ended.
        nodes: Pool of each idle node; None before they are known. Replaced rather than changed.
        ready: Whether profiles have been published; none are before JobManager and Monitor have told what there is.
        has_news: Whether something was reported since the last publication.
        cluster: What the runs last saw of nodes and jobs.
        due_at: When it wants a `Due`, in monotonic seconds; infinity: never.
    """

    options: ProfilerOptions
    curves: CurveEstimator
    runs: ProfilingState
    jobs: dict[str, ReportedJob] = field(default_factory=dict)
    nodes: dict[str, str] | None = None
    ready: bool = False
    has_news: bool = False
    jobs_known: bool = False
    scaling_known: bool = False
    give_monitor_up_at: float = inf
    publish_at: float = inf
    published_at: float = -inf
    points_saved_at: float = -inf
    cluster: ClusterView | None = field(default=None, init=False, metadata=DERIVED)
    _views: JobViews = field(default_factory=JobViews, init=False, metadata=DERIVED)

    @property
    def due_at(self) -> float:
        """When it wants a `Due`, in monotonic seconds; infinity: never."""
        return min(self.publish_at, self.give_monitor_up_at)

    def advance(self, stimulus: Stimulus, now: Moment) -> Effects:
        """Handle a stimulus.

        Returns:
            What is to be done, in this order.

        Raises:
            NotFoundError: the job of a request is not known.
            InvalidInputError: the job of a request cannot be profiled.
        """
        match stimulus:
            case Started():
                self.give_monitor_up_at = now.monotonic + self.options.snapshot_seconds
            case JobsReported():
                self._note_news(now, at_once=self._update_jobs(stimulus))
            case ScalingReported():
                self._update_scaling(stimulus)
                self._note_news(now)
            case NodesReported():
                self._update_nodes(stimulus)
                self._note_news(now)
            case ProfileRequested():
                return self._request_profile(stimulus.job_id, now)
            case ReadRequested():
                return self._update(now) if self.has_news else ()
            case Due():
                return self._handle_due(now)
        return ()

    def _update_jobs(self, report: JobsReported) -> bool:
        """Take jobs in; returns whether there is one that was not known."""
        if report.snapshot:
            self.curves.keep_only(job.job_id for job in report.jobs)
            self.jobs = {}
            self.jobs_known = True
        has_new = False
        for job in report.jobs:
            if job.state.final:
                self.jobs.pop(job.job_id, None)
                self.curves.remove_job(job.job_id)
                self.points_saved_at = -inf  # nobody else will say again what its family has learned of it
            else:
                has_new |= job.job_id not in self.jobs
                self.jobs[job.job_id] = job
                self.curves.put_job(job.declaration)
        return has_new

    def _update_scaling(self, report: ScalingReported) -> None:
        self.scaling_known = True
        self.give_monitor_up_at = inf
        for job_id, measurements in report.records:
            self.curves.put_measurements(job_id, measurements)

    def _update_nodes(self, report: NodesReported) -> None:
        nodes = {} if report.snapshot or self.nodes is None else self.nodes
        left_nodes = frozenset(report.left)
        self.nodes = {name: pool for name, pool in nodes.items() if name not in left_nodes} | dict(report.joined)

    def _note_news(self, now: Moment, *, at_once: bool = False) -> None:
        """Publish soon what comes after a pause, a new job at once, and all that comes soon after it together."""
        patience = 0.0 if at_once else min(_PATIENCE_SECONDS, self.options.publish_seconds)
        rested_at = max(now.monotonic, self.published_at + self.options.publish_seconds)
        self.publish_at = min(self.publish_at, rested_at + patience)
        self.has_news = True

    def _request_profile(self, job_id: str, now: Moment) -> Effects:
        if job_id not in self.jobs:
            raise NotFoundError(f"job {quote(job_id)} is not known, or has ended")
        declared = self.jobs[job_id].declaration
        if declared.fleet_id:
            raise InvalidInputError("job_id", "a job that is in no fleet: members are measured by its plan", job_id)
        if declared.needs_certain_nodes:
            raise InvalidInputError("job_id", "a job that any node suits: its curve is learned as it trains", job_id)
        if len(declared.permitted_nodes) == 1 or declared.min_nodes == declared.max_nodes:
            raise InvalidInputError("job_id", "a job that may run at more than one scale", job_id)
        self.runs = self.runs.with_requested_run(job_id)
        return self._update(now)

    def _handle_due(self, now: Moment) -> Effects:
        effects: Effects = ()
        if now.monotonic >= self.give_monitor_up_at:
            # Measured jobs then get priors, and may be rescaled for it.
            self.scaling_known, self.give_monitor_up_at = True, inf
            self._note_news(now)
            effects = (WarnOfMonitor(),)
        return (*effects, *self._update(now)) if now.monotonic >= self.publish_at else effects

    def _update(self, now: Moment) -> Effects:
        """Recompute curves and runs, have them stored, and tell watchers what has changed."""
        self.has_news, self.publish_at = False, inf
        if not (self.jobs_known and self.scaling_known):
            return ()
        self.published_at = now.monotonic
        changed = {profile.job_id for profile in self.curves.refresh(now.unix_seconds)}
        effects: Effects = ()
        if self.nodes is not None:
            before = self.runs
            self.runs = self._advance_runs(now.unix_seconds, self.nodes)
            changed |= changed_jobs(before, self.runs)
            effects = (CountRuns(before, self.runs),)
        self._look_again()
        points_are_due = now.monotonic - self.points_saved_at >= self.options.save_seconds
        if points_are_due:
            self.points_saved_at = now.monotonic
        effects = (*effects, StoreChanges(points_are_due))
        if self.ready and not changed:
            return effects
        self.ready = True
        known = (profile for profile in self.curves.profiles() if profile.job_id in changed)
        return (*effects, PublishProfiles(tuple(known)))

    def _advance_runs(self, now: float, nodes: dict[str, str]) -> ProfilingState:
        """The runs after their next step; `now` is in seconds since the epoch."""
        views = self._views.of(self.jobs, now, nodes)
        free = without_fleets(nodes, self.jobs)
        self.cluster = ClusterView(now, len(free), views, Counter(free.values()))
        policy = CurveBasedPolicy(self.curves, self.options, [view.job_id for view in views], now)
        return advance(self.runs, self.cluster, policy, self.options.profiling)

    def _look_again(self) -> None:
        """Let runs and curves go on when nothing is reported: some steps are due after a time."""
        goes_on = any(run.state is not ProfileRunState.DONE for run in self.runs.runs.values())
        pause = self.options.look_seconds if goes_on else _MAX_REST_SECONDS
        patience = min(_PATIENCE_SECONDS, self.options.publish_seconds)
        self.publish_at = self.published_at + max(pause, self.options.publish_seconds) + patience
