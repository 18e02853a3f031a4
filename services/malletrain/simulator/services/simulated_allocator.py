"""The Allocator on a simulated clock: the control loop of `malletrain.allocator.loop`, with its pure cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import partial

from malletrain.allocator.change_gaps import ChangeGaps
from malletrain.allocator.choice_table import choose
from malletrain.allocator.cluster_cache import CachedJob, CachedProfile, ClusterCache
from malletrain.allocator.placement import place
from malletrain.allocator.plan_trigger import PlanTrigger
from malletrain.allocator.planner import PlanInput, PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.problem import Allocation, AllocationProblem
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.jobs import Job
from malletrain.model.job_state import JobState
from malletrain.simulator.services.event_queue import EventQueue

ApplyPlan = Callable[[int, Allocation], bool]
"""Has JobManager apply a plan of a generation; whether it did."""


class _Phase(Enum):
    WAITING = "for an event, or for something that is due without one"
    COALESCING = "for events that belong to the first one"
    PLANNING = "for JobManager's answer to a plan"


class SimulatedAllocator:
    """Makes a plan when one is due."""

    def __init__(
        self,
        queue: EventQueue,
        settings: AllocatorSettings,
        plan_seconds: float,
        nodes: Callable[[], Iterable[PlannableNode]],
        apply_plan: ApplyPlan,
    ) -> None:
        """Begin without nodes; that there are no jobs is known.

        Args:
            queue: The simulated clock.
            settings: The Allocator's settings.
            plan_seconds: Seconds from a plan's input to its arrival at JobManager.
            nodes: Asks the Scavenger for the idle nodes with their present stays.
            apply_plan: Sends a plan to JobManager.
        """
        self._queue = queue
        self._options = settings.planner_options
        self._plan_seconds = plan_seconds
        self._nodes = nodes
        self._apply_plan = apply_plan
        self._cache = ClusterCache()
        self._cache.update_jobs((), snapshot=True)
        self._changes = ChangeGaps()
        self._trigger = PlanTrigger(settings.coalesce_seconds, settings.replan_seconds)
        self._generation = 0
        self._phase = _Phase.WAITING
        self._news = False
        self._waits = 0

    def update_nodes(self, joined: Iterable[PlannableNode], left: Iterable[str], *, snapshot: bool) -> None:
        """The Scavenger reports nodes; arguments as for `ClusterCache.update_nodes`."""
        self._cache.update_nodes(joined, left, snapshot=snapshot)
        self._notice()

    def update_jobs(self, jobs: Iterable[Job]) -> None:
        """JobManager reports jobs that have changed."""
        cached = [_cached(job) for job in jobs]
        self._cache.update_jobs(cached)
        self._changes.see_all(cached, self._queue.now, snapshot=False)
        self._notice()

    def update_profiles(self, profiles: Iterable[CachedProfile]) -> None:
        """The Profiler reports curves and pinned scales."""
        self._cache.update_profiles(profiles)
        self._trigger.note_curves()
        self._notice()

    def _notice(self) -> None:
        """Something has changed."""
        if self._phase is _Phase.WAITING:
            self._coalesce()
        else:
            self._news = True

    def _wait(self) -> None:
        if self._news:
            self._coalesce()
            return
        self._phase = _Phase.WAITING
        self._waits += 1
        seconds = self._trigger.wait_seconds(self._cache, self._queue.now, self._queue.now)
        if seconds is not None:
            self._queue.at(self._queue.now + seconds, partial(self._wake, self._waits))

    def _wake(self, wait: int) -> None:
        if self._phase is _Phase.WAITING and wait == self._waits:
            self._coalesce()

    def _coalesce(self) -> None:
        self._phase = _Phase.COALESCING
        self._queue.at(self._queue.now + self._trigger.coalesce_seconds, self._decide)

    def _decide(self) -> None:
        self._news = False
        if self._trigger.reason(self._cache, self._queue.now, self._queue.now):
            self._plan()
        else:
            self._wait()

    def _plan(self) -> None:
        self._phase = _Phase.PLANNING
        self._cache.update_stays(self._nodes())
        now = self._queue.now
        plan_input = replace(self._cache.plan_input(now), changes=self._changes.observed(now))
        self._trigger.begin()
        problem = plan_problem(plan_input, self._options)
        allocation = problem.allocation([_solve(part.rest) for part in problem.parts])
        self._generation = self._cache.next_generation(self._generation)
        self._queue.at(self._queue.now + self._plan_seconds, partial(self._send, plan_input, allocation))

    def _send(self, plan_input: PlanInput, allocation: Allocation) -> None:
        if self._apply_plan(self._generation, allocation):
            self._trigger.applied(plan_input, self._queue.now)
        else:
            self._trigger.refused()
        self._wait()


def _solve(problem: AllocationProblem) -> Allocation:
    """As `malletrain.allocator.solving.solve` by default."""
    choice = choose(problem)
    return Allocation(choice.objective, "OPTIMAL", "dp", 0.0, place(problem, choice.counts.tolist()))


def _cached(job: Job) -> CachedJob:
    """What JobManager would report of a job."""
    return CachedJob(
        plannable=PlannableJob(
            id=job.id,
            min_nodes=job.spec.min_nodes,
            max_nodes=job.spec.max_nodes,
            permitted_nodes=job.spec.permitted_nodes,
            weight=job.spec.weight,
            current_nodes=job.commanded,
            owner=job.owner,
            share_weight=job.share_weight,
        ),
        state=job.state,
        admitted=job.admitted,
        wanted_nodes=job.wanted,
        not_before=job.not_before,
        plan_generation=job.plan_generation,
        stopping_since=job.update_time if job.state is JobState.STOPPING else None,
    )
