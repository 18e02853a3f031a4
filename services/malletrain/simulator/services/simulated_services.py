"""Scavenger, JobManager and Allocator on one simulated clock.

Every decision comes from the services' own pure cores. Simulated are time, supervisors and trainings. Messages between
the services arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, floor, inf
from types import MappingProxyType
from typing import Protocol

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
from malletrain.job_manager.machine.effects import Effect, ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor
from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.machine.state import JobEvent, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult, advance
from malletrain.job_manager.machine.stimuli import (
    Completion,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    Outcome,
    PlanReceived,
    Stimulus,
    Submitted,
    SupervisorEnded,
    SupervisorSeen,
    Ticked,
)
from malletrain.job_manager.machine.time_limits import next_limit
from malletrain.job_manager.machine.validation import check_result
from malletrain.job_manager.settings import JobManagerSettings
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


class TrainingModel(Protocol):
    """How trainings react to the commands of their supervisors. All calls are for the present instant."""

    def start(self, job_id: str, nodes: tuple[str, ...]) -> float:
        """The job's processes start on these nodes.

        Returns:
            When they will train, in seconds.
        """

    def rescale(self, job_id: str, nodes: tuple[str, ...]) -> float:
        """The job moves to these nodes.

        Returns:
            When it will train on them, in seconds.
        """

    def stop(self, job_id: str) -> None:
        """The job saves its state, and its processes end."""


@dataclass
class _Supervisor:
    """A supervisor; the attributes are those of `malletrain.job_manager.machine.stimuli.SupervisorSeen`."""

    job_id: str
    incarnation: int
    sequence: int
    nodes: tuple[str, ...]
    confirmed_sequence: int = 0
    confirmed: frozenset[str] = frozenset()
    occupied: set[str] = field(default_factory=set)

    def observe(self) -> SupervisorSeen:
        return SupervisorSeen(
            self.job_id,
            self.incarnation,
            self.sequence,
            self.confirmed_sequence,
            self.confirmed,
            frozenset(self.occupied),
        )


class SimulatedLauncher:
    """Carries out effects, with a simulated supervisor for each job.

    A supervisor takes commands at once. It confirms a scale when the stall of the rescale is over, it frees nodes that
    have left at once, and it ends at once when it is stopped.
    """

    def __init__(
        self,
        queue: EventQueue,
        training: TrainingModel,
        job: Callable[[str], Job],
        report: Callable[[Stimulus], object],
    ) -> None:
        """
        Args:
            report: Tells JobManager what supervisors say.
        """
        self._queue = queue
        self._training = training
        self._job = job
        self._report = report
        self._supervisors: dict[str, _Supervisor] = {}
        self._in_progress: set[Effect] = set()

    def dispatch(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects that are not in progress already."""
        for effect in effects:
            if effect not in self._in_progress:
                self._in_progress.add(effect)
                # Not at once: JobManager has to finish its transaction first.
                self._queue.at(self._queue.now, partial(self._carry_out, effect))

    def end(self, job_id: str, outcome: Outcome, message: str = "", completion: Completion | None = None) -> None:
        """The processes of a job end by themselves; nothing happens if it has none."""
        if job_id in self._supervisors:
            self._end(self._supervisors[job_id], outcome, message, completion)

    def lose_worker(self, job_id: str, node: str, seconds: float) -> None:
        """A worker dies and is started again by its supervisor.

        Args:
            job_id: The job, which has a supervisor and trains on the node.
            node: The worker's node.
            seconds: Seconds until it is back.
        """
        supervisor = self._supervisors[job_id]
        supervisor.confirmed -= {node}
        self._report(supervisor.observe())
        self._confirm_at(self._queue.now + seconds, supervisor)

    def _carry_out(self, effect: Effect) -> None:
        # It is over before JobManager hears of it: the same effect may be necessary again afterwards.
        self._in_progress.discard(effect)
        supervisor = self._supervisors.get(effect.job_id)
        if supervisor is not None and supervisor.incarnation != effect.incarnation:
            return
        match effect:
            case StartSupervisor() if supervisor is None:
                self._start(effect)
            case SetHosts() if supervisor is not None and effect.sequence > supervisor.sequence:
                self._set_hosts(supervisor, effect)
            case ReleaseHosts() if supervisor is not None:
                supervisor.occupied.difference_update(effect.nodes)
                supervisor.confirmed -= frozenset(effect.nodes)
                self._report(NodesReleased(effect.job_id, effect.incarnation, effect.nodes))
            case StopSupervisor() if supervisor is not None:
                self._training.stop(effect.job_id)
                self._end(supervisor, Outcome.STOPPED)

    def _start(self, effect: StartSupervisor) -> None:
        job = self._job(effect.job_id)
        if job.incarnation != effect.incarnation or job.stop is not None:
            self._report(SupervisorEnded(effect.job_id, effect.incarnation, Outcome.STOPPED, "", None, ()))
            return
        supervisor = _Supervisor(job.id, job.incarnation, job.sequence, job.commanded, occupied=set(job.commanded))
        self._supervisors[job.id] = supervisor
        self._confirm_at(self._training.start(job.id, job.commanded), supervisor)
        self._report(supervisor.observe())

    def _set_hosts(self, supervisor: _Supervisor, effect: SetHosts) -> None:
        supervisor.sequence, supervisor.nodes = effect.sequence, effect.nodes
        supervisor.occupied.update(effect.nodes)
        self._confirm_at(self._training.rescale(effect.job_id, effect.nodes), supervisor)
        self._report(supervisor.observe())

    def _confirm_at(self, time: float, supervisor: _Supervisor) -> None:
        self._queue.at(time, partial(self._confirm, supervisor, supervisor.sequence))

    def _confirm(self, supervisor: _Supervisor, sequence: int) -> None:
        if self._supervisors.get(supervisor.job_id) is not supervisor or supervisor.sequence != sequence:
            return
        supervisor.confirmed_sequence = sequence
        supervisor.confirmed = frozenset(supervisor.nodes)
        supervisor.occupied = set(supervisor.nodes)
        self._report(supervisor.observe())

    def _end(
        self, supervisor: _Supervisor, outcome: Outcome, message: str = "", completion: Completion | None = None
    ) -> None:
        del self._supervisors[supervisor.job_id]
        self._report(SupervisorEnded(supervisor.job_id, supervisor.incarnation, outcome, message, completion, ()))


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
        late_plans: Of plans that take another time, by generation, where that has been recorded.
        validate: Whether JobManager's invariants are checked after every stimulus.
        every_tick: Whether JobManager ticks even when no job can reach a limit; it makes no difference but time.
    """

    allocator: AllocatorSettings = field(default_factory=AllocatorSettings)
    job_manager: JobManagerSettings = field(default_factory=JobManagerSettings)
    debounce_seconds: float = 0.0
    stay_horizon_seconds: float = 1800.0
    plan_seconds: float = 0.0
    late_plans: Mapping[int, float] = field(default_factory=dict)
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
            options.late_plans,
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
        """JobManager ticks at a fixed interval. Ticks before a limit of a job change nothing and are left out."""
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


def _plannable(name: str, stay_seconds: float, facts: NodeFacts) -> PlannableNode:
    return PlannableNode(
        *(name, stay_seconds, facts.pool_key, facts.gpus, facts.gpu_type, facts.features, facts.cpus),
        memory_mib=facts.memory_mib,
        gpu_memory_mib=facts.gpu_memory_mib,
    )
