"""Who is profiled, and what everybody else is asked to do meanwhile (MalleTrain, §3.3). Pure and level-triggered.

One run at a time. It *climbs*: all jobs of its pool keep what they have, donors give up nodes one after the other, and
then the job grows once, to the top. Then it *measures*, from the top down: the job is held at one scale after the
other, and the allocator divides what it gives up as it does with any nodes. Each call of `advance` looks at what is and
says what should be; so a restart, a preemption or a cancellation needs no path of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from malletrain.profiler.donors import Giver, Ledger, next_donor
from malletrain.profiler.knots import Knot
from malletrain.profiler.runs import Run, RunState


@dataclass(frozen=True)
class JobView:
    """A job that takes part in plans, as a profile sees it.

    Attributes:
        job_id: The job; identifiers ascend with submission.
        scales: Permitted scales in nodes, ascending.
        nodes: Nodes that it is commanded to use.
        steady: It trains on just these, no change is under way, and no plan wants one.
        available: It may be given nodes now: it is not being stopped, nor does it wait after a failure.
        pool: Pool of its nodes; None where it has none and there are several.
    """

    job_id: str
    scales: tuple[int, ...]
    nodes: int
    steady: bool
    available: bool = True
    pool: str | None = ""


@dataclass(frozen=True)
class Scene:
    """What is.

    Attributes:
        now: Seconds since the epoch.
        idle: Number of idle nodes, used or not.
        jobs: Those that take part in plans.
        pools: How many of the idle nodes are in which pool; may be empty where there is only one.
    """

    now: float
    idle: int
    jobs: tuple[JobView, ...]
    pools: Mapping[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Nodes that no job uses."""
        return max(0, self.idle - sum(job.nodes for job in self.jobs))

    def around(self, job: JobView) -> Scene:
        """What a job can reach of it: its pool, with those that are or may come there. Nothing while it is in none."""
        if len(self.pools) < 2:
            return self
        mates = tuple(other for other in self.jobs if other.pool in (job.pool, None))
        idle = 0 if job.pool is None else self.pools.get(job.pool, 0)
        return Scene(self.now, idle, mates)


@dataclass(frozen=True)
class Order:
    """What the allocator is asked for: a scale in nodes (0: what the job has), and whether it may grow to it."""

    nodes: int = 0
    grow: bool = False


class Knowledge(Protocol):
    """What is known of curves."""

    def wants(self, job_id: str) -> bool:
        """Whether the job's curve is to be measured without anybody asking."""

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        """The largest of a job's scales that is to be measured."""

    def knot(self, job_id: str, nodes: int) -> Knot | None:
        """What has been measured of the job at a scale."""

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        """The next scale below the present one to measure; None: enough is known."""


@dataclass(frozen=True)
class Pace:
    """How long a run takes its time; see `malletrain.profiler.settings`."""

    target_error: float = 0.05
    least_steps: int = 8
    visit_seconds: float = 60.0
    least_top_share: float = 0.5
    climb_seconds: float = 180.0
    retry_seconds: float = 60.0


@dataclass(frozen=True)
class Desk:
    """All runs, by job, and who has been interrupted for them."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def active(self) -> Run | None:
        """The run that holds jobs now."""
        return next((run for run in self.runs.values() if run.state.active), None)

    def ask(self, job_id: str) -> Desk:
        """Queue a run that somebody asked for; one that is queued or active already stays as it is."""
        run = self.runs.get(job_id)
        if run is not None and run.state.active:
            return self
        return self.put(Run(job_id, RunState.QUEUED, "asked for, waits for its turn", asked=True))

    def put(self, run: Run) -> Desk:
        """The desk with a run as it is now."""
        return replace(self, runs={**self.runs, run.job_id: run})


@dataclass(frozen=True)
class Advance:
    """The desk after a look, and the orders in force, by job."""

    desk: Desk
    orders: Mapping[str, Order]


def advance(desk: Desk, scene: Scene, knowledge: Knowledge, pace: Pace) -> Advance:
    """Look at what is, and take the next step.

    Args:
        desk: As it was left.
        scene: What is.
        knowledge: What is known of curves.
        pace: How long to take.
    """
    views = {job.job_id: job for job in scene.jobs}
    desk = _tidied(desk, views, knowledge)
    run = desk.active
    if run is not None:
        run = _looked_at(run, views, scene)
        desk = desk.put(run)
    if run is None or not run.state.active:
        desk = _begin_next(desk, scene, knowledge, pace)
        run = desk.active
    if run is None:
        return Advance(desk, {})
    if run.state is RunState.CLIMBING:
        desk, orders = _climb(desk, run, scene, knowledge, pace)
        climbed = desk.runs[run.job_id]
        if climbed.state is not RunState.MEASURING:
            return Advance(desk, orders)
        run = climbed
    run = _measure(run, views[run.job_id], scene.around(views[run.job_id]), knowledge, pace)
    held = {run.job_id: Order(run.nodes)} if run.state is RunState.MEASURING else {}
    return Advance(desk.put(run), held)


def _tidied(desk: Desk, views: Mapping[str, JobView], knowledge: Knowledge) -> Desk:
    """Forget jobs that are gone and runs that are no longer wanted; queue those that are."""
    runs = {
        job_id: run
        for job_id, run in desk.runs.items()
        if job_id in views and (run.state is not RunState.QUEUED or run.asked or run.visited or knowledge.wants(job_id))
    }
    for job_id, view in views.items():
        if job_id not in runs and len(view.scales) > 1 and knowledge.wants(job_id):
            runs[job_id] = Run(job_id, RunState.QUEUED, "its curve is not known, waits for its turn")
    return Desk({job_id: runs[job_id] for job_id in sorted(runs)}, desk.ledger.only(list(views)))


def _looked_at(run: Run, views: Mapping[str, JobView], scene: Scene) -> Run:
    view = views[run.job_id]
    run = run.looked_at(scene.now, view.nodes, view.steady)
    if not view.available:
        return run.put_back("waits until the job may have nodes again")
    if run.state is RunState.MEASURING and view.nodes == 0:
        return run.put_back("all its nodes were taken; goes on when there are enough again")
    return run


def _begin_next(desk: Desk, scene: Scene, knowledge: Knowledge, pace: Pace) -> Desk:
    """Begin the first queued run for which there are nodes; the others keep their places."""
    views = {job.job_id: job for job in scene.jobs}
    for run in desk.runs.values():
        if run.state is not RunState.QUEUED or run.not_before > scene.now:
            continue
        view = views[run.job_id]
        top, needed = _goal(run, view, scene.around(view), knowledge, pace)
        if not view.available or (view.nodes and not view.steady):
            continue
        if top < needed:
            desk = desk.put(replace(run, reason=f"waits for nodes: {needed} needed, {top} within reach"))
            continue
        began = replace(run, state=RunState.CLIMBING, began=scene.now, top=top, not_before=0.0)
        began = _bound_for(began, top, f"climbs to {top}", scene.now, knowledge, pace)
        return desk.put(began.looked_at(scene.now, view.nodes, view.steady))
    return desk


def _givers(job_id: str, scene: Scene) -> list[Giver]:
    return [Giver(job.job_id, job.nodes, job.scales, job.steady) for job in scene.jobs if job.job_id != job_id]


def _largest(scales: Sequence[int], nodes: int) -> int:
    return max((scale for scale in scales if scale <= nodes), default=0)


def _goal(run: Run, view: JobView, scene: Scene, knowledge: Knowledge, pace: Pace) -> tuple[int, int]:
    """The scale to climb to, and the smallest one that is worth a profile.

    Worth it is a share of what there could be, and more than the smallest scale. Free nodes are taken as far as they
    go; other jobs are interrupted only as far as it takes to reach that. A run that was broken off goes on below what
    it has measured, however few nodes that takes.
    """
    limit = knowledge.largest(run.job_id, view.scales)
    scales = [scale for scale in view.scales if scale <= limit]
    own = view.nodes + scene.free
    reach = own + sum(giver.spare for giver in _givers(view.job_id, scene) if giver.nodes)
    remaining = [scale for scale in scales if scale < min(run.visited, default=limit + 1)]
    if run.visited and remaining:
        return _largest(remaining, reach), remaining[0]
    worth = pace.least_top_share * min(limit, scene.idle)
    needed = next((scale for scale in scales[1:] if scale >= worth), limit)
    return max(_largest(scales, own), min(needed, _largest(scales, reach))), needed


def _climb(desk: Desk, run: Run, scene: Scene, knowledge: Knowledge, pace: Pace) -> tuple[Desk, dict[str, Order]]:
    view = next(job for job in scene.jobs if job.job_id == run.job_id)
    scene = scene.around(view)
    reach, needed = _goal(run, view, scene, knowledge, pace)
    top = min(run.top, reach)
    late = run.began is not None and scene.now - run.began > pace.climb_seconds
    if top < needed or late:
        reason = "could not climb in time" if late else f"nodes left: only {top} within reach"
        return desk.put(run.put_back(f"{reason}; waits for its turn", scene.now + pace.retry_seconds)), {}
    if top != run.top:
        run = _bound_for(replace(run, top=top), top, f"climbs to {top}", scene.now, knowledge, pace)
    if view.nodes >= top and view.steady:
        arrived = replace(run, state=RunState.MEASURING, reason=f"measures at {top}", donor="")
        return desk.put(arrived), {}
    desk, run = _with_donor(desk, run, view, scene)
    orders = {job.job_id: Order() for job in scene.jobs}
    given = 0
    if run.donor:
        orders[run.donor] = Order(run.donor_nodes)
        given = max(0, next(job.nodes for job in scene.jobs if job.job_id == run.donor) - run.donor_nodes)
    if view.nodes + scene.free + given >= top:
        orders[run.job_id] = Order(top, grow=True)
    return desk.put(run), orders


def _with_donor(desk: Desk, run: Run, view: JobView, scene: Scene) -> tuple[Desk, Run]:
    """The present donor while it has not given; then, where more is needed, the next one."""
    jobs = {job.job_id: job for job in scene.jobs}
    donor = jobs.get(run.donor)
    if donor is not None and (donor.nodes > run.donor_nodes or not donor.steady):
        return desk, run
    missing = run.top - view.nodes - scene.free
    found = next_donor(_givers(run.job_id, scene), desk.ledger) if missing > 0 else None
    if found is None:
        return desk, replace(run, donor="", donor_nodes=0)
    kept = found.after_giving(missing)
    desk = replace(desk, ledger=desk.ledger.interrupted(found.job_id))
    return desk, replace(run, donor=found.job_id, donor_nodes=kept, donors=(*run.donors, found.job_id))


def _measure(run: Run, view: JobView, scene: Scene, knowledge: Knowledge, pace: Pace) -> Run:
    """Hold the scale until it is known well enough, then go down."""
    if view.nodes < run.nodes:
        reason = f"nodes were taken, goes on with {view.nodes}"
        run = _bound_for(run, view.nodes, reason, scene.now, knowledge, pace)
    if view.nodes > run.nodes or not view.steady:
        return run
    knot = knowledge.knot(run.job_id, run.nodes)
    if run.arrived is None:
        run = replace(run, arrived=scene.now)
    if not _known_well(run, knot, scene.now, pace):
        return run
    visited = run.visited if run.nodes in run.visited else (*run.visited, run.nodes)
    following = knowledge.next_scale(run.job_id, run.nodes, run.top, visited, scene.idle)
    if following is None:
        return replace(run, state=RunState.DONE, reason=f"measured at {_in_words(visited)}", visited=visited, seen=None)
    run = replace(run, visited=visited)
    return _bound_for(run, following, f"measures at {following}", scene.now, knowledge, pace)


def _bound_for(run: Run, nodes: int, reason: str, now: float, knowledge: Knowledge, pace: Pace) -> Run:
    """On the way to a scale: what is measured there from now on counts, and what is known for sure of just now."""
    knot = knowledge.knot(run.job_id, nodes)
    sure = knot is not None and now - knot.unix_seconds <= pace.visit_seconds and knot.error <= pace.target_error
    base = 0 if knot is None or sure else knot.steps
    return replace(run, nodes=nodes, arrived=None, base_steps=base, reason=reason)


def _known_well(run: Run, knot: Knot | None, now: float, pace: Pace) -> bool:
    if run.arrived is not None and now - run.arrived >= pace.visit_seconds:
        return True
    if knot is None:
        return False
    return knot.steps - run.base_steps >= pace.least_steps and knot.error <= pace.target_error


def _in_words(visited: Sequence[int]) -> str:
    return ", ".join(map(str, visited)) + (" node" if tuple(visited) == (1,) else " nodes")
