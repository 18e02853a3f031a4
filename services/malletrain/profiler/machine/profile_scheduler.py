"""Schedules profile runs: which job is profiled, and at which scales all jobs should run meanwhile (MalleTrain, §3.3).

There is one active run at a time. It first *climbs*: all jobs of its pool keep their scale, donors give up nodes one
after the other, and the job then grows once, to the largest scale. It then *measures* downwards: the job is kept at one
scale after the other, and the allocator distributes the nodes that it gives up.

`advance` is a pure function of the previous state and of the cluster as it is now. Restarts, preemptions and
cancellations therefore need no code of their own: the next call continues with what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from malletrain.profiler.machine.donors import Donor, InterruptionHistory, next_donor
from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState

_RENEW_BELOW = 0.5
"""Requests are renewed when less than this share of their duration is left."""


@dataclass(frozen=True)
class JobView:
    """A job that takes part in plans.

    Attributes:
        job_id: The job; identifiers ascend with submission.
        scales: Permitted scales in nodes, ascending.
        nodes: Number of nodes that it is commanded to use.
        steady: Whether it trains on just these nodes, no change is under way, and no plan wants one.
        available: Whether it may be given nodes now: it is not being stopped, does not wait after a
            failure, and its saves do not fail.
        pool: Pool of its nodes; None where it has none and there are several pools.
    """

    job_id: str
    scales: tuple[int, ...]
    nodes: int
    steady: bool
    available: bool = True
    pool: str | None = ""


@dataclass(frozen=True)
class ClusterView:
    """Nodes and jobs at one moment.

    Attributes:
        now: Seconds since the epoch.
        idle: Number of idle nodes, whether jobs of ours use them or not.
        jobs: Jobs that take part in plans.
        pools: Number of idle nodes in each pool; may be empty where there is only one pool.
    """

    now: float
    idle: int
    jobs: tuple[JobView, ...]
    pools: Mapping[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Number of nodes that no job uses."""
        return max(0, self.idle - sum(job.nodes for job in self.jobs))

    def by_id(self) -> dict[str, JobView]:
        """The jobs by their identifiers."""
        return {job.job_id: job for job in self.jobs}

    def pool_of(self, job: JobView) -> ClusterView:
        """The view restricted to a job's pool: its nodes, and the jobs that are in it or in none.

        There are no idle nodes in it while the job is in no pool.
        """
        if len(self.pools) < 2:
            return self
        jobs = tuple(other for other in self.jobs if other.pool in (job.pool, None))
        idle = 0 if job.pool is None else self.pools.get(job.pool, 0)
        return ClusterView(self.now, idle, jobs)


@dataclass(frozen=True)
class ScaleRequest:
    """What the allocator is asked to do with a job.

    Attributes:
        nodes: Exact scale in nodes; 0: the scale that the job has.
        grow: Whether the job may grow to that scale.
    """

    nodes: int = 0
    grow: bool = False


class ProfilingPolicy(Protocol):
    """Decides whose curve is profiled and at which scales."""

    def wants_profile(self, job_id: str) -> bool:
        """Whether the job should be profiled although no user asked for it."""

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        """The largest of a job's permitted scales that should be measured."""

    def measured_at(self, job_id: str, nodes: int) -> CurvePoint | None:
        """What has been measured of the job at a scale."""

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        """The next scale to measure, below the present one; None: enough is known."""


@dataclass(frozen=True)
class ProfilingParameters:
    """Durations and thresholds of runs; see the settings of the same names in `malletrain.profiler.settings`."""

    target_error: float = 0.05
    least_steps: int = 8
    visit_seconds: float = 60.0
    least_top_share: float = 0.5
    climb_seconds: float = 180.0
    retry_seconds: float = 60.0
    hold_seconds: float = 120.0


@dataclass(frozen=True)
class ProfilingState:
    """All runs, and what is asked of the allocator for the active one.

    Attributes:
        runs: The newest run of each job, by job.
        interruptions: Which jobs have given nodes.
        requests: Requests in force, by job. They are not stored: after a restart the next look makes them anew.
        requests_until: When the requests expire, in seconds since the epoch.
    """

    runs: Mapping[str, ProfileRun] = field(default_factory=dict)
    interruptions: InterruptionHistory = field(default_factory=InterruptionHistory)
    requests: Mapping[str, ScaleRequest] = field(default_factory=dict)
    requests_until: float = 0.0

    @property
    def active(self) -> ProfileRun | None:
        """The active run; None where there is none."""
        return next((run for run in self.runs.values() if run.state.active), None)

    def with_requested_run(self, job_id: str) -> ProfilingState:
        """The state with a run queued because a user asked for it; nothing changes while one is active."""
        run = self.runs.get(job_id)
        if run is not None and run.state.active:
            return self
        return self.with_run(ProfileRun(job_id, ProfileRunState.QUEUED, "asked for, waits for its turn", asked=True))

    def with_run(self, run: ProfileRun) -> ProfilingState:
        """The state with a run added or replaced."""
        return replace(self, runs={**self.runs, run.job_id: run})


def advance(
    state: ProfilingState, view: ClusterView, policy: ProfilingPolicy, parameters: ProfilingParameters
) -> ProfilingState:
    """Take the next step.

    Args:
        state: The state after the previous step.
        view: The cluster as it is now.
        policy: Decides whom to profile and at which scales.
        parameters: Durations and thresholds.
    """
    after = _advance(state, view, policy, parameters)
    until = state.requests_until
    outdated = until - view.now < _RENEW_BELOW * parameters.hold_seconds
    if after.requests and (outdated or changed_jobs(state, after)):
        until = view.now + parameters.hold_seconds
    return replace(after, requests_until=until)


def changed_jobs(before: ProfilingState, after: ProfilingState) -> set[str]:
    """Jobs whose request, expiry of the request, or run has changed so that watchers should be told."""
    changed = {
        job_id
        for job_id in {*before.requests, *after.requests}
        if before.requests.get(job_id) != after.requests.get(job_id)
    }
    for job_id, run in after.runs.items():
        old = before.runs.get(job_id)
        if old is None or (old.state, old.reason) != (run.state, run.reason):
            changed.add(job_id)
    if after.requests_until != before.requests_until:
        changed |= set(after.requests)
    return changed


def _advance(
    state: ProfilingState, view: ClusterView, policy: ProfilingPolicy, parameters: ProfilingParameters
) -> ProfilingState:
    jobs = view.by_id()
    state = _with_current_jobs(state, jobs, policy)
    run = state.active
    if run is not None:
        run = _update_run(run, jobs[run.job_id], view.now)
        state = state.with_run(run)
    if run is None or not run.state.active:
        state = _begin_next(state, view, policy, parameters)
        run = state.active
    if run is None:
        return state
    job = jobs[run.job_id]
    pool = view.pool_of(job)
    if run.state is ProfileRunState.CLIMBING:
        state = _climb(state, run, job, pool, policy, parameters)
        run = state.runs[run.job_id]
        if run.state is not ProfileRunState.MEASURING:
            return state
    run = _measure(run, job, pool, policy, parameters)
    requests = {run.job_id: ScaleRequest(run.nodes)} if run.state is ProfileRunState.MEASURING else {}
    return replace(state.with_run(run), requests=requests)


def _with_current_jobs(state: ProfilingState, jobs: Mapping[str, JobView], policy: ProfilingPolicy) -> ProfilingState:
    """Without requests, without jobs that are gone and runs that are no longer wanted, and with new runs queued."""
    runs = {job_id: run for job_id, run in state.runs.items() if job_id in jobs and _is_still_wanted(run, policy)}
    for job_id, job in jobs.items():
        if job_id not in runs and len(job.scales) > 1 and policy.wants_profile(job_id):
            runs[job_id] = ProfileRun(job_id, ProfileRunState.QUEUED, "its curve is not known, waits for its turn")
    ordered = {job_id: runs[job_id] for job_id in sorted(runs)}
    return replace(state, runs=ordered, interruptions=state.interruptions.only(jobs), requests={})


def _is_still_wanted(run: ProfileRun, policy: ProfilingPolicy) -> bool:
    begun = run.state is not ProfileRunState.QUEUED or bool(run.visited)
    return begun or run.asked or policy.wants_profile(run.job_id)


def _update_run(run: ProfileRun, job: JobView, now: float) -> ProfileRun:
    """The active run after a look at its job: with its costs up to now, and queued again if it cannot continue."""
    run = run.updated(now, job.nodes, job.steady)
    if not job.available:
        return run.requeued("waits until the job may have nodes again")
    if run.state is ProfileRunState.MEASURING and not _largest(job.scales, job.nodes):
        return run.requeued("all its nodes were taken; goes on when there are enough again")
    return run


def _begin_next(
    state: ProfilingState, view: ClusterView, policy: ProfilingPolicy, parameters: ProfilingParameters
) -> ProfilingState:
    """Begin the first queued run for which there are enough nodes. The others keep their places."""
    jobs = view.by_id()
    for run in state.runs.values():
        if run.state is not ProfileRunState.QUEUED or run.not_before > view.now:
            continue
        job = jobs[run.job_id]
        if not job.available or (job.nodes and not job.steady):
            continue
        top, needed = _goal(run, job, view.pool_of(job), policy, parameters)
        if top < needed:
            state = state.with_run(replace(run, reason=f"waits for nodes: {needed} needed, {top} within reach"))
            continue
        begun = replace(run, state=ProfileRunState.CLIMBING, began=view.now, top=top, not_before=0.0)
        begun = _approach(begun, top, f"climbs to {top}", view.now, policy, parameters)
        return state.with_run(begun.updated(view.now, job.nodes, job.steady))
    return state


def _donor_candidates(job_id: str, view: ClusterView) -> list[Donor]:
    return [Donor(job.job_id, job.nodes, job.scales, job.steady) for job in view.jobs if job.job_id != job_id]


def _largest(scales: Sequence[int], nodes: int) -> int:
    """The largest scale of at most `nodes` nodes; 0 where there is none."""
    return max((scale for scale in scales if scale <= nodes), default=0)


def _goal(
    run: ProfileRun, job: JobView, pool: ClusterView, policy: ProfilingPolicy, parameters: ProfilingParameters
) -> tuple[int, int]:
    """The scale to climb to, and the smallest one for which a run begins.

    A run begins for a share of the largest scale (or of the idle nodes), which must be more than the job's smallest
    scale. Free nodes are used as far as they go. Other jobs are interrupted only as far as needed to reach that share.
    A run that was broken off continues below the scales that it has measured, however few nodes that takes.
    """
    limit = policy.largest(run.job_id, job.scales)
    scales = [scale for scale in job.scales if scale <= limit]
    own = job.nodes + pool.free
    reach = own + sum(donor.spare for donor in _donor_candidates(job.job_id, pool) if donor.nodes)
    remaining = [scale for scale in scales if scale < min(run.visited, default=limit + 1)]
    if run.visited and remaining:
        return _largest(remaining, reach), remaining[0]
    share = parameters.least_top_share * min(limit, pool.idle)
    needed = next((scale for scale in scales[1:] if scale >= share), limit)
    return max(_largest(scales, own), min(needed, _largest(scales, reach))), needed


def _climb(
    state: ProfilingState,
    run: ProfileRun,
    job: JobView,
    pool: ClusterView,
    policy: ProfilingPolicy,
    parameters: ProfilingParameters,
) -> ProfilingState:
    """Gather nodes from donors, then let the job grow; measuring begins when it has arrived."""
    reach, needed = _goal(run, job, pool, policy, parameters)
    top = min(run.top, reach)
    late = run.began is not None and pool.now - run.began > parameters.climb_seconds
    if top < needed or late:
        reason = "could not climb in time" if late else f"nodes left: only {top} within reach"
        return state.with_run(run.requeued(f"{reason}; waits for its turn", pool.now + parameters.retry_seconds))
    if top != run.top:
        run = _approach(replace(run, top=top), top, f"climbs to {top}", pool.now, policy, parameters)
    if job.nodes >= top and job.steady:
        return state.with_run(
            replace(run, state=ProfileRunState.MEASURING, reason=f"measures at {top}", donor="", donor_nodes=0)
        )
    state = _with_donor(state, run, job, pool)
    return replace(state, requests=_climb_requests(state.runs[run.job_id], job, pool))


def _climb_requests(run: ProfileRun, job: JobView, pool: ClusterView) -> dict[str, ScaleRequest]:
    """All jobs keep their scale, but the donor shrinks; the job grows as soon as there are enough nodes for it."""
    requests = {other.job_id: ScaleRequest() for other in pool.jobs}
    from_donor = 0
    if run.donor:
        requests[run.donor] = ScaleRequest(run.donor_nodes)
        from_donor = max(0, pool.by_id()[run.donor].nodes - run.donor_nodes)
    if job.nodes + pool.free + from_donor >= run.top:
        requests[run.job_id] = ScaleRequest(run.top, grow=True)
    return requests


def _with_donor(state: ProfilingState, run: ProfileRun, job: JobView, pool: ClusterView) -> ProfilingState:
    """Keep the present donor until it has given its nodes; then choose the next one if more are needed."""
    donor = pool.by_id().get(run.donor)
    if donor is not None and (donor.nodes > run.donor_nodes or not donor.steady):
        return state.with_run(run)
    missing = run.top - job.nodes - pool.free
    new_donor = next_donor(_donor_candidates(run.job_id, pool), state.interruptions) if missing > 0 else None
    if new_donor is None:
        return state.with_run(replace(run, donor="", donor_nodes=0))
    remaining = new_donor.scale_after_giving(missing)
    run = replace(run, donor=new_donor.job_id, donor_nodes=remaining, donors=(*run.donors, new_donor.job_id))
    return replace(state.with_run(run), interruptions=state.interruptions.interrupted(new_donor.job_id))


def _measure(
    run: ProfileRun, job: JobView, pool: ClusterView, policy: ProfilingPolicy, parameters: ProfilingParameters
) -> ProfileRun:
    """Stay at the scale until it is known precisely enough, then go on to a smaller one."""
    if job.nodes < run.nodes:
        remaining_nodes = _largest(job.scales, job.nodes)
        run = _approach(
            run, remaining_nodes, f"nodes were taken, goes on with {remaining_nodes}", pool.now, policy, parameters
        )
    if job.nodes > run.nodes or not job.steady:
        return run
    point = policy.measured_at(run.job_id, run.nodes)
    if run.arrived is None:
        run = replace(run, arrived=pool.now)
    if not _is_measured(run, point, pool.now, parameters):
        return run
    visited = run.visited if run.nodes in run.visited else (*run.visited, run.nodes)
    following = policy.next_scale(run.job_id, run.nodes, run.top, visited, pool.idle)
    if following is None:
        reason = f"measured at {_text(visited)}"
        return replace(run, state=ProfileRunState.DONE, reason=reason, visited=visited, seen=None)
    run = replace(run, visited=visited)
    return _approach(run, following, f"measures at {following}", pool.now, policy, parameters)


def _approach(
    run: ProfileRun, nodes: int, reason: str, now: float, policy: ProfilingPolicy, parameters: ProfilingParameters
) -> ProfileRun:
    """The run on its way to a scale. Steps from now on count, and a precise measurement of the last moments."""
    point = policy.measured_at(run.job_id, nodes)
    recent = point is not None and now - point.unix_seconds <= parameters.visit_seconds
    precise = point is not None and point.relative_error <= parameters.target_error
    base = 0 if point is None or (recent and precise) else point.steps
    return replace(run, nodes=nodes, arrived=None, base_steps=base, reason=reason)


def _is_measured(run: ProfileRun, point: CurvePoint | None, now: float, parameters: ProfilingParameters) -> bool:
    if run.arrived is not None and now - run.arrived >= parameters.visit_seconds:
        return True
    if point is None:
        return False
    enough = point.steps - run.base_steps >= parameters.least_steps
    return enough and point.relative_error <= parameters.target_error


def _text(visited: Sequence[int]) -> str:
    return ", ".join(map(str, visited)) + (" node" if tuple(visited) == (1,) else " nodes")
