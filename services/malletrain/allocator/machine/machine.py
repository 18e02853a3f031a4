"""The Allocator as a machine: stimuli in, effects out; without I/O, and without a clock of its own.

A plan takes these steps (`PlanPhase`). An event ends the wait. Others may join it for `coalesce_seconds`; in the second
half of that time peers are asked and the present problem is solved. When the time is over, that solution serves if
nothing has moved, else the problem is solved again, and JobManager is asked to apply the plan. What happens later is
for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from enum import Enum
from math import inf

from malletrain.allocator.fleets.members import FleetDecision
from malletrain.allocator.fleets.planning import FleetPlanning, with_fleets
from malletrain.allocator.machine.change_gaps import ChangeGaps
from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.machine.growth_times import BootTime, GrowthTimes
from malletrain.allocator.machine.node_stays import NodeStays
from malletrain.allocator.machine.options import MachineOptions
from malletrain.allocator.machine.plan_trigger import PlanTrigger
from malletrain.allocator.machine.rate_deadlines import RateDeadlines
from malletrain.allocator.machine.stimuli import (
    ApplyPlan,
    AskPeers,
    BeginPlan,
    Due,
    Effect,
    FinishPlan,
    ForgetEvents,
    ForwardTimeChosen,
    JobsReported,
    NodesReported,
    PeersAnswered,
    Plan,
    PlanAnswered,
    PlanOutcome,
    ProfilesReported,
    Solve,
    Solved,
    Stimulus,
    StoreGrowths,
)
from malletrain.allocator.problem.allocation_problem import Allocation, Assignment
from malletrain.allocator.problem.planner import PlanInput, PlanProblem, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.common.gpus import node_of
from malletrain.runtime.kernel.recording import Moment

Effects = tuple[Effect, ...]

_FRESH_SECONDS = 0.5
"""How long the Scavenger's answer serves. Until then nodes that have joined have the stay that their join told."""


class PlanPhase(Enum):
    """What the machine waits for."""

    WAITING = "an event, or a time at which something is due without one"
    YIELDING = "half of the time for events that come together: a release that they call for needs the processors now"
    ASKING_AHEAD = "peers' answers, while events may still come"
    SOLVING_AHEAD = "the solution of the present problem, while events may still come"
    COALESCING = "the rest of that time"
    ASKING = "peers' answers, for the plan that is due"
    SOLVING = "the solution for the plan that is due"
    APPLYING = "JobManager's answer to the plan"


_ANSWERED_BY = {
    PlanPhase.ASKING_AHEAD: PeersAnswered,
    PlanPhase.ASKING: PeersAnswered,
    PlanPhase.SOLVING_AHEAD: Solved,
    PlanPhase.SOLVING: Solved,
    PlanPhase.APPLYING: PlanAnswered,
}


class UnexpectedStimulusError(Exception):
    """A stimulus that does not belong to the machine's phase: a defect of whoever drives it."""


@dataclass(frozen=True)
class Remembered:
    """What the machine takes over from the Allocator before a restart.

    Attributes:
        generation: Generation of the newest plan; 0: there was none.
        decisions: How that plan divided the nodes of fleets, by fleet.
        growths: Growths that have been measured, oldest first.
    """

    generation: int = 0
    decisions: Mapping[str, FleetDecision] | None = None
    growths: tuple[BootTime, ...] = ()


@dataclass(frozen=True)
class _Problem:
    """A problem that is being solved, with the input that it was made from.

    Attributes:
        present: The present as it is compared with that of the next plan.
        planning: The input of the problem, which also has what was measured.
        curves_seen: How many reports of curves had come.
        begun_at: When it was begun, in monotonic seconds.
    """

    present: PlanInput
    planning: FleetPlanning
    problem: PlanProblem
    curves_seen: int
    begun_at: float


@dataclass
class AllocatorMachine:
    """Decides when a plan is made and of what. Stimuli are handled one at a time; the state changes in place.

    It begins without knowing any node or job; no plan is made before both are known.

    Attributes:
        options: The operator's choices.
        remembered: What outlives a restart; None: there is nothing.
        phase: What it waits for.
        due_at: When it wants a `Due`, in monotonic seconds; infinity: never.
        generation: Generation of the newest plan that has been answered; 0: none has.
    """

    options: MachineOptions
    remembered: InitVar[Remembered | None] = None
    phase: PlanPhase = PlanPhase.WAITING
    due_at: float = inf
    generation: int = field(init=False)
    _planner: PlannerOptions = field(init=False)
    _cache: ClusterCache = field(default_factory=ClusterCache)
    _stays: NodeStays = field(default_factory=NodeStays)
    _growths: GrowthTimes = field(init=False)
    _changes: ChangeGaps = field(default_factory=ChangeGaps)
    _trigger: PlanTrigger = field(init=False)
    _decisions: Mapping[str, FleetDecision] = field(init=False)
    _rate_deadlines: RateDeadlines = field(init=False)
    _has_news: bool = False
    _news_at: float = -inf
    _has_moved: bool = False
    _nodes_moved: bool = False
    _is_prepared: bool = False
    _answered_at: float = -inf
    _curves_seen: int = 0
    _plan_at: float = inf
    _solving_seconds: float = 0.0
    _reason: str = ""
    _problem: _Problem | None = None
    _solved_ahead: tuple[_Problem, Allocation] | None = None
    _solved: _Problem | None = None
    _plan: Plan | None = None
    _newest_change: int = 0

    def __post_init__(self, remembered: Remembered | None) -> None:
        """Take over what is remembered."""
        remembered = remembered or Remembered()
        self.generation = remembered.generation
        self._planner = self.options.planner
        self._growths = GrowthTimes(remembered.growths)
        self._trigger = PlanTrigger(self.options.replan_seconds, self.options.fleet_replan_seconds)
        self._decisions = dict(remembered.decisions or {})
        late = {job_id: late for decision in self._decisions.values() for job_id, late in decision.late_rates}
        self._rate_deadlines = RateDeadlines(self.options.fleet_measuring_seconds, late)

    @property
    def cluster(self) -> ClusterCache:
        """What is known of nodes, jobs and curves; to be read only."""
        return self._cache

    def advance(self, stimulus: Stimulus, now: Moment) -> Effects:
        """Handle a stimulus.

        Returns:
            What is to be done, in this order; at most one of these is a `Question`, and then it is the last one.

        Raises:
            UnexpectedStimulusError: an answer to what was not asked, or a `Due` while an answer is awaited.
        """
        match stimulus:
            case NodesReported():
                self._cache.update_nodes(stimulus.joined, stimulus.left, snapshot=stimulus.snapshot)
                self._trigger.note_left(stimulus.left)
                self._nodes_moved |= bool(stimulus.joined or stimulus.left)
                return self._note_news(now, moved=True)
            case JobsReported():
                return (*self._see_jobs(stimulus, now), *self._note_news(now, moved=True))
            case ProfilesReported():
                self._cache.update_profiles(stimulus.profiles)
                self._curves_seen += 1
                self._trigger.note_curves()
                return self._note_news(now)
            case ForwardTimeChosen():
                self._planner = replace(self._planner, forward=stimulus.forward)
                self._has_moved = True  # what was solved ahead does not serve any more
                return ()
            case Due():
                return self._continue(now)
        expected = _ANSWERED_BY.get(self.phase)
        if expected is None or not isinstance(stimulus, expected):
            raise UnexpectedStimulusError(f"{type(stimulus).__name__} while waiting for {self.phase.value}")
        match stimulus:
            case PeersAnswered():
                return self._take_answers(stimulus, now)
            case Solved():
                return self._take_solution(stimulus, now)
            case PlanAnswered():
                return self._finish(stimulus, now)

    def _see_jobs(self, report: JobsReported, now: Moment) -> Effects:
        jobs = report.jobs
        if not report.snapshot:  # an answer to a plan overtakes what was reported before it
            jobs = tuple(job for job in jobs if not self._cache.is_outdated(job))
        if self._cache.has_other_weights(jobs):
            self._trigger.note_weights()
        self._cache.update_jobs(jobs, snapshot=report.snapshot)
        measured = self._growths.see_all(jobs, now.monotonic, snapshot=report.snapshot, pool_of=self._cache.pool_of)
        self._changes.see_all(jobs, now.monotonic, snapshot=report.snapshot)
        self._cache.note_generation(report.generation)
        return (StoreGrowths(tuple(measured)),) if measured else ()

    def _note_news(self, now: Moment, *, moved: bool = False) -> Effects:
        """Note that something has changed: begin to wait for more events, or do so right after the present plan."""
        if not self._has_news:
            self._has_news, self._news_at = True, now.monotonic
        self._has_moved |= moved
        if self.phase is PlanPhase.WAITING:
            self._coalesce(now)
        return ()

    def _wait(self, now: Moment) -> None:
        if self._has_news:
            self._coalesce(now, self._news_at)
            return
        self.phase = PlanPhase.WAITING
        due = self._trigger.wait_seconds(self._cache, now.unix_seconds, now.monotonic)
        waits = [seconds for seconds in (due, self._rate_deadlines.next_seconds()) if seconds is not None]
        self.due_at = now.monotonic + min(waits, default=inf)

    def _coalesce(self, now: Moment, begin: float | None = None) -> None:
        """Wait for more events, from the first of them on: it may have come at `begin`, while a plan was made."""
        self.phase = PlanPhase.YIELDING
        # Events come in bursts. In the second half of the wait for more of them, peers are asked and the problem is
        # solved ahead: then, unless another event comes, the plan is ready when the wait is over.
        if begin is None or self._cache.generation < self._newest_change:
            begin = now.monotonic  # what the plan before has changed is not reported yet, and would be planned again
        self._plan_at = max(now.monotonic, begin + self.options.coalesce_seconds)
        self.due_at = max(now.monotonic, begin + self.options.coalesce_seconds / 2)

    def _continue(self, now: Moment) -> Effects:
        """The time that was waited for has come."""
        match self.phase:
            case PlanPhase.WAITING:
                self._coalesce(now)
                return ()
            case PlanPhase.YIELDING:
                self._solved_ahead = None
                # Moved nodes nearly always call for a plan: looking for the reason costs more than asking peers.
                self._is_prepared = self._cache.complete and (self._nodes_moved or bool(self._find_reason(now)))
                self._nodes_moved = False
                if not self._is_prepared:
                    return self._await_rest()
                return self._solve_ahead(now) if self._knows_enough(now) else self._ask(PlanPhase.ASKING_AHEAD)
            case PlanPhase.COALESCING:
                return self._decide(now)
            case _:
                raise UnexpectedStimulusError(f"Due while waiting for {self.phase.value}")

    def _await_rest(self) -> Effects:
        self.phase = PlanPhase.COALESCING
        self.due_at = self._plan_at
        return ()

    def _decide(self, now: Moment) -> Effects:
        """The time for events that come together is over: make a plan if one is due."""
        if self._has_moved:
            self._solved_ahead = None  # of nodes and jobs that are others by now
        self._has_news = False
        self._reason = self._find_reason(now)
        if not self._reason:
            self._wait(now)
            return (ForgetEvents(),)
        begin = BeginPlan(self._reason)
        if not self._is_prepared and not self._knows_enough(now):
            return (begin, *self._ask(PlanPhase.ASKING))
        return (begin, *self._solve_or_apply(now))

    def _find_reason(self, now: Moment) -> str:
        """Why a plan is due; empty where none is."""
        waiting = self._rate_deadlines.next_seconds() is not None
        if self._cache.complete and (waiting or self._cache.has_fleets):
            present = self._cache.plan_input(now.unix_seconds)
            self._cache.update_late_rates(self._rate_deadlines.look(present, now.monotonic))
        return self._trigger.reason(self._cache, now.unix_seconds, now.monotonic)

    def _knows_enough(self, now: Moment) -> bool:
        """Whether what peers have answered will do for one more plan: so soon after, only samples say anything new."""
        is_fresh = now.monotonic - self._answered_at < _FRESH_SECONDS
        return is_fresh and not self._cache.members and not self._cache.deadlines

    def _ask(self, phase: PlanPhase) -> Effects:
        self.phase, self.due_at = phase, inf
        return (AskPeers(self._stays.token, self._cache.members, self._cache.deadlines),)

    def _take_answers(self, answer: PeersAnswered, now: Moment) -> Effects:
        if answer.stays is not None:
            self._answered_at = now.monotonic
            self._stays.take_report(answer.stays, now.unix_seconds)
        # Without an answer the expected stays are those at the nodes' present ages, by the answer before.
        if answer.nodes:
            self._cache.update_stays(answer.nodes)
        else:
            stays = self._stays.seconds(self._cache.node_names, now.unix_seconds)
            self._cache.update_stays(self._stays.changed(stays), stays)
        if answer.samples:
            self._cache.update_samples(answer.samples)
        if answer.feed_rates:
            self._cache.update_feeds(answer.feed_rates)
        if self.phase is PlanPhase.ASKING:
            return self._solve_or_apply(now)
        return self._solve_ahead(now)

    def _solve_ahead(self, now: Moment) -> Effects:
        """Solve the present problem if there is time for that before the plan is due."""
        # From here on, what moves is not part of the solution; curves of a moment ago will do.
        self._has_moved = False
        if self._cache.has_fleets or self._plan_at - now.monotonic <= self._solving_seconds:
            return self._await_rest()
        return self._solve(PlanPhase.SOLVING_AHEAD, now)

    def _solve_or_apply(self, now: Moment) -> Effects:
        """Go on with the plan that is due: by the solution that was found ahead, if there is one."""
        self._trigger.begin()
        if self._solved_ahead is None:
            return self._solve(PlanPhase.SOLVING, now)
        ahead, self._solved_ahead = self._solved_ahead, None
        return self._apply(*ahead, now)

    def _solve(self, phase: PlanPhase, now: Moment) -> Effects:
        present = self._cache.plan_input(now.unix_seconds)
        plan_input = replace(
            present,
            growth_seconds=self._growths.seconds(self._cache.pool_of),
            changes=self._changes.observed(now.monotonic),
            unix_seconds=now.unix_seconds,
        )
        planning = with_fleets(plan_input, self._planner.forward, self._decisions)
        problem = plan_problem(planning.plan_input, self._planner)
        self._problem = _Problem(present, planning, problem, self._curves_seen, now.monotonic)
        self.phase, self.due_at = phase, inf
        return (Solve(tuple(part.rest for part in problem.parts)),)

    def _take_solution(self, solved: Solved, now: Moment) -> Effects:
        problem, self._problem = self._problem, None
        assert problem is not None
        allocation = problem.problem.allocation(solved.allocations)
        self._solving_seconds = now.monotonic - problem.begun_at
        if self.phase is PlanPhase.SOLVING_AHEAD:
            self._solved_ahead = problem, allocation
            return self._await_rest()
        return self._apply(problem, allocation, now)

    def _apply(self, solved: _Problem, allocation: Allocation, now: Moment) -> Effects:
        # Curves that have come while it was solved are for the next plan.
        if solved.curves_seen != self._curves_seen:
            self._trigger.note_curves()
        self._solved = solved
        self._plan = Plan(
            generation=self._cache.next_generation(self.generation),
            reason=self._reason,
            unix_seconds=now.unix_seconds,
            planning=solved.planning,
            problem=solved.problem,
            allocation=allocation,
            decisions=solved.planning.decide(allocation),
        )
        self.phase, self.due_at = PlanPhase.APPLYING, inf
        return (ApplyPlan(self._plan, self._changing_parts(self._plan)),)

    def _changing_parts(self, plan: Plan) -> tuple[Assignment, ...]:
        """What a plan changes; all of it while what the plan before has changed is not reported yet.

        Jobs of a node that has left and is back are named, too: JobManager may have taken it from them, and not
        reported that yet.
        """
        if self._cache.generation < self._newest_change:
            return plan.assignments
        back = self._trigger.left_nodes.intersection(self._cache.node_names)
        wanted = self._cache.wanted_nodes
        return tuple(
            part
            for part in plan.assignments
            if part.nodes != wanted(part.job_id) or not back.isdisjoint(map(node_of, part.nodes) if back else ())
        )

    def _finish(self, answer: PlanAnswered, now: Moment) -> Effects:
        plan, solved = self._plan, self._solved
        self._plan = self._solved = None
        assert plan is not None
        assert solved is not None
        self.generation = plan.generation
        if answer.outcome is not PlanOutcome.REFUSED and answer.rescaled:
            self._newest_change = plan.generation
        ahead = tuple(filter(self._cache.is_ahead, answer.jobs))
        stored = self._see_jobs(JobsReported(ahead, generation=plan.generation), now) if answer.jobs else ()
        if answer.outcome is PlanOutcome.APPLIED:
            self._trigger.note_applied(solved.present, now.monotonic, in_part=bool(answer.omissions))
            self._remember(plan.decisions, solved.present.resting.values())
        else:
            self._trigger.note_refused()
        self._wait(now)
        return (FinishPlan(plan, answer), *stored)

    def _remember(self, decisions: Iterable[FleetDecision], resting: Iterable[str]) -> None:
        """Keep how fleets are divided, those included that have no GPUs now and have not ended."""
        of_resting = {name: self._decisions[name] for name in resting if name in self._decisions}
        self._decisions = of_resting | {decision.fleet_id: decision for decision in decisions}
