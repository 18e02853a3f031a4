"""Profiler's machine as its recorder and replays see it, and its invariants: errors name each job concerned."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Iterator
from itertools import pairwise

from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobProfile
from malletrain.profiler.machine.donors import InterruptionHistory
from malletrain.profiler.machine.family_store import FamilyStore
from malletrain.profiler.machine.machine import Effects, ProfilerMachine
from malletrain.profiler.machine.profile_scheduler import ClusterView, JobView, ProfilingState, ScaleRequest
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.machine.stimuli import JobsReported, ReadRequested, ScalingReported, Stimulus
from malletrain.runtime.errors import InvalidInputError, InvariantError, NotFoundError
from malletrain.runtime.kernel.recording import Moment, RecordedMachine


class RecordedProfiler(RecordedMachine[ProfilerMachine, Stimulus, Effects]):
    """Profiler's machine."""

    service = "profiler"
    file_prefix = "profiler-stimuli"
    state_type = ProfilerMachine
    stimulus_types = typing.get_args(Stimulus)
    refusals = (InvalidInputError, NotFoundError)

    def advance(self, state: ProfilerMachine, stimulus: Stimulus, now: Moment) -> Effects:
        """Have the machine handle a stimulus; its state changes in place."""
        return state.advance(stimulus, now)

    def check(self, before: ProfilerMachine, result: Effects) -> None:
        """Check curves and runs, unless something was reported that they do not show yet."""
        del result
        if before.ready and not before.has_news:
            validate_curves(before.curves)
            if before.cluster is not None:
                validate_runs(before.runs, before.cluster)

    def is_recorded(self, stimulus: Stimulus, result: Effects) -> bool:
        """Readers for whom there was no news are left out."""
        return bool(result) or not isinstance(stimulus, ReadRequested)

    def concerns(self, stimulus: Stimulus, job_id: str) -> bool:
        """Whether a stimulus is about a job."""
        match stimulus:
            case JobsReported():
                return any(job.job_id == job_id for job in stimulus.jobs)
            case ScalingReported():
                return any(name == job_id for name, _ in stimulus.records)
            case _:
                return super().concerns(stimulus, job_id)


_Violation = tuple[str, str]
"""A job (empty where none is to blame) and what is wrong."""


def validate_runs(state: ProfilingState, view: ClusterView) -> None:
    """Check runs, requests and interruptions after a step.

    Args:
        state: The state that `advance` returned.
        view: The cluster that it was given.

    Raises:
        InvariantError: at least one invariant is broken; names all of them.
    """
    jobs = view.by_id()
    broken = [*_runs(state, jobs), *_requests(state, view), *_interruptions(state.interruptions, jobs)]
    if broken:
        stories = (
            f"job {job_id}: run {state.runs.get(job_id)}; request {state.requests.get(job_id)}; {jobs.get(job_id)}"
            for job_id in sorted({job_id for job_id, _ in broken if job_id})
        )
        raise InvariantError("\n".join((*_texts(broken), *stories)))


def validate_curves(curves: CurveEstimator) -> None:
    """Check the profiles of all jobs and the members of families.

    Raises:
        InvariantError: at least one invariant is broken; names all of them.
    """
    broken = [*_profiles(curves), *_families(curves.families)]
    if broken:
        stories = (
            f"job {job_id}: {curves.declaration(job_id)}; {curves.profile(job_id)}"
            for job_id in sorted({job_id for job_id, _ in broken if job_id})
        )
        raise InvariantError("\n".join((*_texts(broken), *stories)))


def _texts(broken: Iterable[_Violation]) -> Iterator[str]:
    return (f"job {job_id}: {text}" if job_id else text for job_id, text in broken)


def _runs(state: ProfilingState, jobs: dict[str, JobView]) -> Iterator[_Violation]:
    active = [run.job_id for run in state.runs.values() if run.state.active]
    if len(active) > 1:
        yield active[-1], f"is profiled while others are: {', '.join(active[:-1])}"
    for job_id, run in state.runs.items():
        if run.job_id != job_id:
            yield job_id, f"has the run of job {run.job_id}"
        elif job_id not in jobs:
            yield job_id, "has a run but takes part in no plan"
        else:
            yield from _run(run, jobs[job_id])
            if run.state.active:
                yield from _active_run(run, jobs)
            elif run.donor or run.seen is not None:
                yield job_id, f"has a run that is {run.state} but has a donor, or still counts its costs"


def _run(run: ProfileRun, job: JobView) -> Iterator[_Violation]:
    if any(before <= after for before, after in pairwise(run.visited)):
        yield run.job_id, f"was measured in another order than downwards: {run.visited}"
    if not set(run.visited) <= set(job.scales):
        yield run.job_id, f"was measured at scales that are not permitted: {run.visited}"
    if not 0 <= run.stalled_node_seconds <= run.node_seconds * (1 + 1e-9):
        yield run.job_id, f"was stalled for {run.stalled_node_seconds} of {run.node_seconds} node-seconds"
    if min(run.growths, run.shrinks, run.seconds) < 0:
        yield run.job_id, "has a run with negative costs"


def _active_run(run: ProfileRun, jobs: dict[str, JobView]) -> Iterator[_Violation]:
    scales = jobs[run.job_id].scales
    if run.began is None or run.seen is None:
        yield run.job_id, "has an active run that has not begun"
    if run.top not in scales or run.nodes not in scales or run.nodes > run.top:
        yield run.job_id, f"is measured at {run.nodes} of at most {run.top} nodes; permitted are {scales}"
    if any(nodes <= run.nodes for nodes in run.visited):
        yield run.job_id, f"is measured at {run.nodes} nodes, not below what it has been measured at: {run.visited}"
    if run.state is ProfileRunState.CLIMBING and run.nodes != run.top:
        yield run.job_id, f"climbs to {run.nodes} nodes instead of {run.top}"
    if run.donor:
        yield from _donor(run, jobs)


def _donor(run: ProfileRun, jobs: dict[str, JobView]) -> Iterator[_Violation]:
    if run.state is not ProfileRunState.CLIMBING:
        yield run.job_id, f"takes nodes from {run.donor} although it is {run.state}"
    if run.donor == run.job_id or run.donor not in jobs:
        yield run.job_id, f"takes nodes from {run.donor}, which is itself or takes part in no plan"
    elif run.donor_nodes not in jobs[run.donor].scales:
        yield run.donor, f"is to keep {run.donor_nodes} nodes for {run.job_id}, which is not a permitted scale"
    if run.donor not in run.donors:
        yield run.job_id, f"takes nodes from {run.donor}, which is not among its donors {run.donors}"


def _requests(state: ProfilingState, view: ClusterView) -> Iterator[_Violation]:
    run = state.active
    if run is None:
        for job_id in state.requests:
            yield job_id, "has a request although no run is active"
        return
    if run.job_id not in state.requests:
        yield run.job_id, "is profiled without a request"
    if state.requests_until <= view.now:
        yield run.job_id, f"has requests that expired at {state.requests_until}; it is {view.now}"
    jobs = view.by_id()
    for job_id, request in state.requests.items():
        if job_id not in jobs:
            yield job_id, "has a request but takes part in no plan"
        elif request.nodes and request.nodes not in jobs[job_id].scales:
            yield job_id, f"is requested to have {request.nodes} nodes, which is not a permitted scale"
        elif request not in _expected_requests(job_id, run):
            yield job_id, f"has a request that does not follow from the run of {run.job_id}: {run}"


def _expected_requests(job_id: str, run: ProfileRun) -> tuple[ScaleRequest, ...]:
    """What may be requested of a job while a run is active."""
    if run.state is ProfileRunState.MEASURING:
        return (ScaleRequest(run.nodes),) if job_id == run.job_id else ()
    if job_id == run.job_id:
        return (ScaleRequest(), ScaleRequest(run.top, grow=True))
    return (ScaleRequest(run.donor_nodes),) if job_id == run.donor else (ScaleRequest(),)


def _interruptions(history: InterruptionHistory, jobs: dict[str, JobView]) -> Iterator[_Violation]:
    if set(history.latest) != set(history.counts):
        yield "", f"interruptions of different jobs are numbered and counted: {history}"
    if len(set(history.latest.values())) < len(history.latest):
        yield "", f"two interruptions have the same number: {history.latest}"
    for job_id, count in history.counts.items():
        if job_id not in jobs or count < 1:
            yield job_id, f"has {count} interruptions, or takes part in no plan"


def _profiles(curves: CurveEstimator) -> Iterator[_Violation]:
    for profile in curves.profiles():
        declared = curves.declaration(profile.job_id)
        if declared is None:
            yield profile.job_id, "has a profile but is not known"
            continue
        if not profile.points or profile.points[-1].nodes != declared.max_nodes:
            yield profile.job_id, f"has a curve that does not end at its largest scale, {declared.max_nodes}"
        elif not 1 <= profile.points[0].nodes <= declared.min_nodes:
            yield profile.job_id, f"has a curve that begins above its smallest scale, {declared.min_nodes}"
        yield from _figures(profile)


def _figures(profile: JobProfile) -> Iterator[_Violation]:
    if any(left.nodes >= right.nodes or left.rate > right.rate for left, right in pairwise(profile.points)):
        yield profile.job_id, "has a curve that falls, or whose scales do not ascend"
    rates = [figure for point in profile.points for figure in (point.rate, point.relative_error)]
    stalls = [profile.scale_up.seconds, profile.scale_down.seconds, *(stall.seconds for stall in profile.stalls)]
    if any(not math.isfinite(figure) or figure < 0 for figure in (*rates, *stalls)):
        yield profile.job_id, "has a figure in its profile that is negative or not finite"


def _families(store: FamilyStore) -> Iterator[_Violation]:
    for name, members in store.families.items():
        job_ids = [member.job_id for member in members]
        for job_id in sorted({job_id for job_id in job_ids if job_ids.count(job_id) > 1}):
            yield job_id, f"is more than once in family {name}"
        for job_id in sorted(store.left.intersection(job_ids)):
            yield job_id, f"is in family {name} although it has left it"
