"""Scavenger, JobManager and Allocator on one simulated clock.

Every decision comes from the services' own pure cores. Simulated are time, supervisors and trainings. Messages between
the services arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import ceil, floor, inf

from malletrain.allocator.cluster_cache import CachedProfile
from malletrain.allocator.problem import Allocation
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.jobs import Job, JobSpec
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.job_manager.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.state_machine import TransactionResult, advance
from malletrain.job_manager.stimuli import IdleSetSeen, NodesChanged, PlanReceived, Stimulus, Submitted, Ticked
from malletrain.job_manager.validation import check_result
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import StalePlanError
from malletrain.scavenger.idle_set import IdleEvent
from malletrain.simulator.services.event_queue import EventQueue
from malletrain.simulator.services.simulated_allocator import SimulatedAllocator
from malletrain.simulator.services.simulated_launcher import SimulatedLauncher, TrainingModel
from malletrain.simulator.services.simulated_scavenger import SimulatedScavenger


@dataclass(frozen=True)
class ServicesOptions:
    """Settings of the services, and what is simulated around them.

    Attributes:
        allocator: Settings of the Allocator.
        job_manager: Settings of JobManager.
        debounce_seconds: Seconds for which a node must be idle before it counts.
        stay_horizon_seconds: How far expected stays look ahead, in seconds.
        plan_seconds: Seconds from a plan's input to its arrival at JobManager.
        validate: Whether JobManager's invariants are checked after every stimulus.
        every_tick: Whether JobManager ticks even when no job can reach a limit; it makes no difference but time.
    """

    allocator: AllocatorSettings = field(default_factory=AllocatorSettings)
    job_manager: JobManagerSettings = field(default_factory=JobManagerSettings)
    debounce_seconds: float = 0.0
    stay_horizon_seconds: float = 1800.0
    plan_seconds: float = 0.0
    validate: bool = False
    every_tick: bool = False


class SimulatedServices:
    """The three services.

    Attributes:
        state: What JobManager knows.
        refusals: Plans that JobManager refused: time in seconds, and why.
        launcher: The simulated supervisors.
    """

    def __init__(
        self,
        queue: EventQueue,
        training: TrainingModel,
        options: ServicesOptions,
        *,
        nodes: Sequence[str] = (),
        pools: Mapping[str, str] | None = None,
        record: Callable[[Sequence[JobEvent]], object] = lambda _: None,
    ) -> None:
        """Begin without idle nodes and jobs.

        Args:
            queue: The simulated clock.
            training: How trainings react to their supervisors.
            options: Settings.
            nodes: All nodes in the source's order.
            pools: Pool of each node; nodes that are missing are in the pool "".
            record: Takes new rows of JobManager's journal.
        """
        self.state = ManagerState()
        self.refusals: list[tuple[float, str]] = []
        self.launcher = SimulatedLauncher(queue, training, lambda job_id: self.state.jobs[job_id], self.apply)
        self._queue = queue
        self._options = options
        self._policy = options.job_manager.policy()
        self._record = record
        self._next_tick = inf
        self._scavenger = SimulatedScavenger(options.debounce_seconds, options.stay_horizon_seconds, nodes, pools)
        self._allocator = SimulatedAllocator(
            queue,
            options.allocator,
            options.plan_seconds,
            lambda: self._scavenger.nodes(queue.now),
            self._apply_plan,
        )

    def set_idle(self, idle: Mapping[str, float]) -> None:
        """The source shows these nodes as idle.

        Args:
            idle: Each idle node with the time since when, in seconds.
        """
        self._announce(self._scavenger.observe(self._queue.now, idle))

    def submit(self, specs: Sequence[JobSpec], owner: str = "") -> None:
        """A user submits jobs. Their identifiers are "j000001", "j000002", … in the order of all submissions."""
        self.apply(Submitted(tuple(specs), owner))

    def set_profiles(self, profiles: Sequence[CachedProfile]) -> None:
        """The Profiler reports curves and pinned scales."""
        self._allocator.update_profiles(profiles)

    def apply(self, stimulus: Stimulus) -> TransactionResult:
        """JobManager handles a stimulus.

        Raises:
            StalePlanError: the stimulus is a plan that does not fit the present.
            NotFoundError: the stimulus is for a job that is not active.
            StateInvariantError: an invariant of JobManager is broken; only where the options ask for the checks.
        """
        before = self.state
        result = advance(before, stimulus, self._queue.now, self._policy)
        if self._options.validate:
            check_result(before, result)
        self.state = result.state
        if result.events:
            self._record(result.events)
        self.launcher.dispatch(result.effects)
        if result.changed:
            self._allocator.update_jobs(result.changed)
        self._plan_tick()
        return result

    def _announce(self, event: IdleEvent) -> None:
        """Tell JobManager of nodes that join and leave, which releases nodes at once, and then the Allocator."""
        joined = frozenset(node.name for node in event.joined)
        first = self.state.idle is None
        if first:
            self.apply(IdleSetSeen(joined))
        elif event:
            self.apply(NodesChanged(joined, frozenset(event.left), self._queue.now))
        if first or event:
            nodes = [node for node in self._scavenger.nodes(self._queue.now) if node.name in joined]
            self._allocator.update_nodes(nodes, event.left, snapshot=first)
        if self._scavenger.next_join is not None:
            self._queue.at(self._scavenger.next_join, self._end_debounce)

    def _end_debounce(self) -> None:
        event = self._scavenger.tick(self._queue.now)
        if event:
            self._announce(event)

    def _apply_plan(self, generation: int, allocation: Allocation) -> bool:
        assignments = tuple((entry.job_id, entry.nodes) for entry in allocation.assignments)
        try:
            self.apply(PlanReceived(generation, assignments))
        except StalePlanError as error:
            self.refusals.append((self._queue.now, str(error)))
            return False
        return True

    def _plan_tick(self) -> None:
        """JobManager ticks at a fixed interval. Ticks before the first limit of a job do nothing and are left out."""
        interval, now = self._options.job_manager.reconcile_seconds, self._queue.now
        first = now if self._options.every_tick else next_limit(self.state.jobs.values(), self._policy)
        if first == inf:
            return
        due = max(floor(now / interval) + 1, ceil(first / interval)) * interval
        if due < self._next_tick:
            self._next_tick = due
            self._queue.at(due, partial(self._tick, due))

    def _tick(self, due: float) -> None:
        if due == self._next_tick:
            self._next_tick = inf
            self.apply(Ticked())


def next_limit(jobs: Iterable[Job], policy: ManagerPolicy) -> float:
    """When `watchdogs.check_time_limits` may first change a job, in seconds; infinity where it never will."""
    return min(chain.from_iterable(_limits(job, policy) for job in jobs), default=inf)


def _limits(job: Job, policy: ManagerPolicy) -> Iterator[float]:
    if job.not_before is not None:
        yield job.not_before
    if not job.supervised or job.stop is not None:
        return
    if job.state is not JobState.RUNNING:
        yield job.changed_at + policy.rescale_deadline_seconds
    if job.done_since is not None:
        yield job.done_since + policy.finish_seconds
    if job.stalled_since is not None:
        yield job.stalled_since + policy.stall_seconds
    if job.counted_failures and job.good_since is not None:
        yield job.good_since + policy.restart_forgive_seconds
