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
from types import MappingProxyType

from malletrain.allocator.machine.cluster_cache import CachedProfile
from malletrain.allocator.machine.machine import AllocatorMachine
from malletrain.allocator.machine.stimuli import (
    ApplyPlan,
    JobsReported,
    NodesReported,
    Plan,
    PlanAnswered,
    PlanOutcome,
    ProfilesReported,
)
from malletrain.allocator.problem.planner import PlannableNode
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.machine.hangs import change_deadline
from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult, advance
from malletrain.job_manager.machine.stimuli import IdleSetSeen, NodesChanged, PlanReceived, Stimulus, Submitted, Ticked
from malletrain.job_manager.machine.validation import check_result
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import StalePlanError
from malletrain.runtime.kernel.recording import Moment
from malletrain.scavenger.machine.idle_set import IdleEvent, IdleSet
from malletrain.scavenger.machine.machine import ScavengerMachine
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts, Observation
from malletrain.scavenger.machine.quarantine import Quarantine, QuarantinePolicy
from malletrain.scavenger.machine.stays import StayEstimator
from malletrain.scavenger.machine.stimuli import AnnounceEvent, Due, NodesObserved, StaysRequested
from malletrain.scavenger.machine.stimuli import Stimulus as ScavengerStimulus
from malletrain.simulator.services.driven_allocator import AskSamples, DrivenAllocator, job_as_reported
from malletrain.simulator.services.event_queue import EventQueue
from malletrain.simulator.services.simulated_launcher import SimulatedLauncher, TrainingModel

OnPlan = Callable[[float, Plan, PlanAnswered], object]


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
    """Scavenger, JobManager and Allocator in one process, on a simulated clock.

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
        facts: Mapping[str, NodeFacts] = MappingProxyType({}),
        record: Callable[[Sequence[JobEvent]], object] = lambda _: None,
        on_plan: OnPlan = lambda *_: None,
        samples: AskSamples = lambda _: {},
    ) -> None:
        """
        Args:
            training: How trainings react to their supervisors.
            nodes: All nodes in the source's order.
            facts: What nodes are; nodes that are missing are in the pool "", and nothing is known of them.
            on_plan: Called with the time in seconds, each plan and its answer.
            samples: Tells how many samples jobs have trained on; only deadlines need it.
        """
        self.state = ManagerState()
        self.refusals: list[tuple[float, str]] = []
        self.launcher = SimulatedLauncher(queue, training, lambda job_id: self.state.jobs[job_id], self.apply)
        self._queue = queue
        self._options = options
        self._policy = options.job_manager.policy()
        self._record = record
        self._on_plan = on_plan
        self._next_tick = inf
        self._facts = facts
        self._scavenger = ScavengerMachine(
            IdleSet(options.debounce_seconds, nodes),
            StayEstimator(horizon_seconds=options.stay_horizon_seconds),
            Quarantine(QuarantinePolicy()),
        )
        self._allocator = DrivenAllocator(
            queue,
            AllocatorMachine(options.allocator.machine_options),
            options.plan_seconds,
            self._ask_stays,
            self._answer_plan,
            samples,
        )
        self._allocator.apply(JobsReported((), snapshot=True))

    def set_idle(self, idle: Mapping[str, float]) -> None:
        """The source shows these nodes as idle.

        Args:
            idle: Each idle node with the time since when, in seconds.
        """
        now = self._queue.now
        self._tell_scavenger(NodesObserved(Observation(now, idle, facts=self._facts)))

    def submit(self, specs: Sequence[JobSpec], owner: str = "") -> None:
        """A user submits jobs. Their identifiers are "j000001", "j000002", … in the order of all submissions."""
        self.apply(Submitted(tuple(specs), owner))

    def set_profiles(self, profiles: Sequence[CachedProfile]) -> None:
        """The Profiler reports curves and pinned scales."""
        self._allocator.apply(ProfilesReported(tuple(profiles)))

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
            self._allocator.apply(
                JobsReported(tuple(map(job_as_reported, result.changed)), False, self.state.generation)
            )
        self._plan_tick()
        return result

    def _tell_scavenger(self, stimulus: ScavengerStimulus) -> None:
        """Tell JobManager of nodes that join and leave, which releases nodes at once, and then the Allocator."""
        effects = self._scavenger.advance(stimulus, Moment(self._queue.now, self._queue.now))
        event = next((effect.event for effect in effects if isinstance(effect, AnnounceEvent)), IdleEvent())
        joined = frozenset(node.name for node in event.joined)
        first = self.state.idle is None
        if first:
            self.apply(IdleSetSeen(joined))
        elif event:
            self.apply(NodesChanged(joined, frozenset(event.left), self._queue.now))
        if first or event:
            nodes = tuple(node for node in self._nodes() if node.name in joined)
            self._allocator.apply(NodesReported(nodes, event.left, first))
        deadline = self._scavenger.idle.next_deadline()
        if deadline is not None:
            self._queue.at(deadline, self._end_debounce)

    def _end_debounce(self) -> None:
        deadline = self._scavenger.idle.next_deadline()
        if deadline is not None and deadline <= self._queue.now:
            self._tell_scavenger(Due())

    def _ask_stays(self) -> list[PlannableNode]:
        self._scavenger.advance(StaysRequested(), Moment(self._queue.now, self._queue.now))
        return self._nodes()

    def _nodes(self) -> list[PlannableNode]:
        """All nodes that count as idle, with their present stays."""
        scavenger, now = self._scavenger, self._queue.now
        return [
            _plannable(node.name, scavenger.expected_stay(node, now), self._facts.get(node.name, NO_FACTS))
            for node in scavenger.idle.members()
        ]

    def _answer_plan(self, question: ApplyPlan) -> PlanAnswered:
        answer = self._apply_plan(question)
        self._on_plan(self._queue.now, question.plan, answer)
        return answer

    def _apply_plan(self, question: ApplyPlan) -> PlanAnswered:
        assignments = tuple((entry.job_id, entry.nodes) for entry in question.parts)
        try:
            result = self.apply(PlanReceived(question.plan.generation, assignments, partial=True))
        except StalePlanError as error:
            self.refusals.append((self._queue.now, str(error)))
            return PlanAnswered(PlanOutcome.REFUSED, str(error))
        omissions = tuple(entry.reason for entry in result.omitted)
        return PlanAnswered(PlanOutcome.APPLIED, omissions=omissions, rescaled=bool(result.rescaled))

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
        yield change_deadline(job, policy)
    if job.done_since is not None:
        yield job.done_since + policy.finish_seconds
    if job.stalled_since is not None:
        yield job.stalled_since + job.spec.limits.step
    if job.counted_failures and job.good_since is not None:
        yield job.good_since + policy.restart_forgive_seconds


def _plannable(name: str, stay_seconds: float, facts: NodeFacts) -> PlannableNode:
    return PlannableNode(
        *(name, stay_seconds, facts.pool_key, facts.gpus, facts.gpu_type, facts.features, facts.cpus),
        memory_mib=facts.memory_mib,
        gpu_memory_mib=facts.gpu_memory_mib,
    )
