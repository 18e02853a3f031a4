"""The Allocator's machine by itself: which steps a plan takes, what serves it, and that nothing contradicts itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.machine.cluster_cache import CachedJob, CachedProfile
from malletrain.allocator.machine.machine import AllocatorMachine, PlanPhase, UnexpectedStimulusError
from malletrain.allocator.machine.node_stays import NodeTimes, StayReport
from malletrain.allocator.machine.options import MachineOptions
from malletrain.allocator.machine.recording import check_advance, check_plan
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
    PlanAnswered,
    PlanOutcome,
    ProfilesReported,
    Solve,
    Solved,
    Stimulus,
    StoreGrowths,
)
from malletrain.allocator.problem.allocation_problem import Assignment, CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvariantError
from malletrain.runtime.kernel.recording import Moment
from tests.support.builders import cached_job, plannable_nodes

PLANNER = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
OPTIONS = MachineOptions(PLANNER, coalesce_seconds=0.1)
CURVE = JobCurve((ScalingPoint(1, 10.0), ScalingPoint(4, 40.0)), 2.0, 0.0)
START = 1000.0
STAYS = PeersAnswered(StayReport("t1", 1e9, 500.0, False, None, True, {"n1": NodeTimes(1e9, None, "", 0)}))


def nodes(*names: str, left: tuple[str, ...] = (), snapshot: bool = False) -> NodesReported:
    return NodesReported(plannable_nodes(*names, expected_stay_seconds=9.0), left, snapshot)


def profiles(*names: str) -> ProfilesReported:
    return ProfilesReported(tuple(CachedProfile(name, CURVE) for name in names))


class Driver:
    """Tells a machine what happens, and keeps what it wants done; invariants are checked after each stimulus."""

    def __init__(self, options: MachineOptions = OPTIONS) -> None:
        self.machine = AllocatorMachine(options)
        self.now = START
        self.effects: list[Effect] = []
        self.told: list[tuple[Stimulus, Moment, tuple[Effect, ...]]] = []
        self.question: Effect | None = None
        self.peers = PeersAnswered()

    def tell(self, stimulus: Stimulus) -> tuple[Effect, ...]:
        now = Moment(1e9 + self.now, self.now)
        found = self.machine.advance(stimulus, now)
        check_advance(self.machine, found)
        self.effects += found
        self.told.append((stimulus, now, found))
        return found

    def see(self, event: Stimulus | float, *, answers: bool, outcome: PlanOutcome = PlanOutcome.APPLIED) -> None:
        """Something happens, or seconds pass; then a question is answered or not, or what is due is done."""
        if isinstance(event, float):
            self.now += event
        else:
            self.tell(event)
        if self.question is not None and answers:
            found = self.answer(self.question, outcome)
        elif self.question is None and self.machine.due_at <= self.now:
            found = self.tell(Due())
        else:
            return
        self.question = found[-1] if found and isinstance(found[-1], AskPeers | Solve | ApplyPlan) else None

    def know(self, *jobs: CachedJob, idle: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.tell(nodes(*idle, snapshot=True))
        self.tell(JobsReported(jobs, snapshot=True))
        self.tell(profiles(*(job.plannable.id for job in jobs)))

    def wait(self) -> tuple[Effect, ...]:
        """Until something is due."""
        self.now = self.machine.due_at
        return self.tell(Due())

    def asks(self, seconds: float, joining: str) -> bool:
        """Whether peers are asked for the plan that a node's join calls for, after some seconds."""
        self.now += seconds
        self.tell(nodes(joining))
        self.effects.clear()
        self.answer(self.until(ApplyPlan))
        return any(isinstance(effect, AskPeers) for effect in self.effects)

    def answer(self, effect: Effect, outcome: PlanOutcome = PlanOutcome.APPLIED) -> tuple[Effect, ...]:
        match effect:
            case AskPeers():
                return self.tell(self.peers)
            case Solve():
                return self.tell(Solved(tuple(map(solve, effect.problems))))
            case ApplyPlan():
                return self.tell(PlanAnswered(outcome))
            case _:
                raise AssertionError(effect)

    def until(self, *kinds: type[Effect], outcome: PlanOutcome = PlanOutcome.APPLIED) -> Effect:
        """Answer and wait until there is such an effect."""
        effects: tuple[Effect, ...] = ()
        for _ in range(100):
            if found := [effect for effect in effects if isinstance(effect, kinds)]:
                return found[-1]
            question = effects[-1] if effects and isinstance(effects[-1], AskPeers | Solve | ApplyPlan) else None
            effects = self.answer(question, outcome) if question is not None else self.wait()
        raise AssertionError(f"no {kinds} in {self.effects}")


def test_the_steps_of_a_plan() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    assert (driver.machine.phase, driver.machine.due_at) == (PlanPhase.YIELDING, START + 0.05)
    (ask,) = driver.wait()
    assert driver.machine.due_at == inf
    (solve_ahead,) = driver.answer(ask)
    assert driver.answer(solve_ahead) == ()
    assert (driver.machine.phase, driver.machine.due_at) == (PlanPhase.COALESCING, START + 0.1)
    begin, apply = driver.wait()
    assert begin == BeginPlan("nodes joined: n1, n2, n3; jobs arrived: a")
    assert isinstance(apply, ApplyPlan)
    assert apply.plan.assignments == (Assignment("a", ("n1", "n2", "n3")),)
    (finish,) = driver.answer(apply)
    assert finish == FinishPlan(apply.plan, PlanAnswered(PlanOutcome.APPLIED))
    assert (driver.machine.phase, driver.machine.due_at) == (PlanPhase.WAITING, inf)


def test_no_plan_before_nodes_and_jobs_are_known() -> None:
    driver = Driver()
    driver.tell(nodes("n1", snapshot=True))
    assert driver.wait() == ()
    assert driver.wait() == (ForgetEvents(),)
    assert driver.machine.phase is PlanPhase.WAITING


def test_what_moves_after_a_solution_was_found_ahead_makes_it_useless() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    driver.answer(*driver.answer(*driver.wait()))
    driver.tell(nodes("n4"))
    solve_again = driver.wait()[-1]
    assert isinstance(solve_again, Solve)
    (apply,) = driver.answer(solve_again)
    assert isinstance(apply, ApplyPlan)
    assert apply.plan.assignments[0].nodes == ("n1", "n2", "n3", "n4")


def test_so_does_another_forward_looking_time() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    driver.answer(driver.until(AskPeers))
    driver.answer(driver.effects[-1])
    assert driver.machine.phase is PlanPhase.COALESCING
    driver.tell(ForwardTimeChosen(ForwardTime(7.0)))
    apply = driver.until(ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    assert apply.plan.problem.whole.forward_seconds == 7.0


def test_curves_that_change_meanwhile_do_not() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    driver.answer(*driver.answer(*driver.wait()))
    driver.tell(profiles("a"))
    assert isinstance(driver.wait()[-1], ApplyPlan)
    driver.answer(driver.effects[-1])
    # They are for another plan, later.
    driver.tell(nodes())
    assert driver.wait() == ()
    assert driver.wait() == (ForgetEvents(),)
    assert driver.machine.due_at == pytest.approx(START + 0.1 + OPTIONS.replan_seconds)


def test_an_event_that_came_while_a_plan_was_made_has_waited_already() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    apply = driver.until(ApplyPlan)
    driver.tell(nodes("n4"))
    driver.now += 10 * OPTIONS.coalesce_seconds
    driver.answer(apply, PlanOutcome.REFUSED)
    assert driver.machine.phase is PlanPhase.YIELDING
    assert driver.machine.due_at == driver.now


def test_plans_that_follow_each_other_are_made_from_one_answer_of_peers() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    assert [driver.asks(0.0, "n4"), driver.asks(0.1, "n5")] == [True, True], "nobody has told of stays"
    driver.peers = STAYS
    assert [driver.asks(0.1, f"n{number}") for number in range(6, 9)] == [True, False, False]
    assert [driver.asks(1.0, "n9"), driver.asks(0.1, "n10")] == [True, False]


def test_what_a_plan_has_changed_is_known_from_its_answer() -> None:
    """Reports of these jobs come later; one from before the plan must not undo what the answer has told."""
    driver = Driver()
    before = cached_job("a")
    driver.know(before)
    apply = driver.until(ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    wanted = ("n1", "n2", "n3")
    after = replace(
        before,
        plannable=replace(before.plannable, current_nodes=wanted, wanted_nodes=wanted),
        plan_generation=apply.plan.generation,
    )
    driver.tell(nodes("n4"))
    driver.now += 10 * OPTIONS.coalesce_seconds
    driver.tell(
        PlanAnswered(PlanOutcome.APPLIED, jobs=(after, replace(after, plannable=cached_job("ended").plannable)))
    )
    assert driver.machine.due_at == driver.now
    driver.tell(JobsReported((before,)))
    again = driver.until(ApplyPlan)
    assert isinstance(again, ApplyPlan)
    assert again.parts == (Assignment("a", ("n1", "n2", "n3", "n4")),)
    assert [job.id for job in again.plan.problem.whole.jobs] == ["a"]
    # What was reported before the answer is newer than that.
    confirmed = replace(after, plan_generation=again.plan.generation, confirmed_nodes=frozenset(wanted))
    driver.tell(JobsReported((confirmed,)))
    driver.tell(PlanAnswered(PlanOutcome.APPLIED, jobs=(replace(confirmed, confirmed_nodes=frozenset()),)))
    (known,) = driver.machine.cluster.jobs
    assert known.confirmed_nodes


def test_what_a_plan_has_changed_is_waited_for_before_another_one() -> None:
    """That one would give the same nodes to others, and JobManager would leave it out."""
    driver = Driver()
    driver.know(cached_job("a"))
    apply = driver.until(ApplyPlan)
    driver.tell(nodes("n4"))
    driver.now += 10 * OPTIONS.coalesce_seconds
    driver.answer(apply)
    assert driver.machine.due_at == pytest.approx(driver.now + OPTIONS.coalesce_seconds / 2)


def test_an_event_while_a_plan_is_applied_makes_another_one() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    apply = driver.until(ApplyPlan)
    driver.tell(nodes("n4"))
    driver.answer(apply)
    assert driver.machine.phase is PlanPhase.YIELDING
    again = driver.until(ApplyPlan)
    assert isinstance(again, ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    assert again.plan.generation == apply.plan.generation + 1
    assert again.plan.reason == "nodes joined: n4"


def test_a_refused_plan_is_made_again_after_pauses_that_double() -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    pauses = []
    for _ in range(6):
        driver.until(FinishPlan, outcome=PlanOutcome.REFUSED)
        pauses.append(round(driver.machine.due_at - driver.now, 6))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


WRONG = {
    "a rate that is no number": replace(CURVE, points=(ScalingPoint(1, 10.0), ScalingPoint(4, nan))),
    "a rate below 0": replace(CURVE, points=(ScalingPoint(1, -1.0),)),
    "scales that do not ascend": replace(CURVE, points=(ScalingPoint(4, 10.0), ScalingPoint(1, 40.0))),
    "no point": replace(CURVE, points=()),
    "an endless stall": replace(CURVE, scale_up_seconds=inf),
    "a value beyond all bounds": replace(CURVE, points=(ScalingPoint(1, 1e308),)),
}


@pytest.mark.parametrize("curve", WRONG.values(), ids=WRONG)
def test_a_job_with_wrong_figures_is_left_out_and_keeps_its_nodes(curve: JobCurve) -> None:
    """The others are planned as if it and its nodes were not there; once its figures are right it takes part again."""
    driver = Driver()
    driver.tell(ProfilesReported((CachedProfile("j1", CURVE), CachedProfile("j2", curve))))
    driver.tell(nodes("n1", "n2", "n3", snapshot=True))
    driver.tell(JobsReported((cached_job("j1", max_nodes=4), cached_job("j2", "n1", max_nodes=4)), True, 0))
    plan = driver.until(FinishPlan)
    assert isinstance(plan, FinishPlan)
    assert plan.plan.assignments == (Assignment("j1", ("n2", "n3")),)
    assert list(plan.plan.planning.plan_input.faults) == ["j2"]
    driver.tell(profiles("j2"))
    driver.tell(nodes("n4"))
    plan = driver.until(FinishPlan)
    assert isinstance(plan, FinishPlan)
    assert {part.job_id for part in plan.plan.assignments} == {"j1", "j2"}
    assert not plan.plan.planning.plan_input.faults


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": nan},
        {"weight": 0.0},
        {"share_weight": inf},
        {"min_nodes": 0},
        {"min_nodes": 5},
        {"permitted_nodes": (4, 2)},
        {"current_nodes": ("n1", "n1")},
        {"current_nodes": ("n3",)},
    ],
    ids=str,
)
def test_so_is_one_whose_terms_or_nodes_are_wrong(wrong: dict[str, Any]) -> None:
    driver, right = Driver(), cached_job("j2", max_nodes=4)
    job = replace(right, plannable=replace(right.plannable, **wrong))
    driver.know(cached_job("j1", "n3", max_nodes=4), job)
    plan = driver.until(FinishPlan)
    assert isinstance(plan, FinishPlan)
    (part,) = plan.plan.assignments
    assert part.job_id == "j1"
    assert "n3" in part.nodes  # which it holds, whatever the other one says
    assert list(plan.plan.planning.plan_input.faults) == ["j2"]


def named(driver: Driver, outcome: PlanOutcome = PlanOutcome.APPLIED) -> list[str]:
    """The jobs that the next plan names to JobManager."""
    apply = driver.until(ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    driver.answer(apply, outcome)
    return [part.job_id for part in apply.parts]


def reported(driver: Driver, *jobs: CachedJob) -> JobsReported:
    """JobManager's report of these jobs, and that it has applied the newest plan."""
    settled = (replace(job, plannable=replace(job.plannable, wanted_nodes=job.plannable.current_nodes)) for job in jobs)
    return JobsReported(tuple(settled), generation=driver.machine.generation)


def test_a_plan_names_the_jobs_that_it_changes_once_all_is_reported() -> None:
    driver, a, b = Driver(), cached_job("a", "n1", "n2"), cached_job("b", "n3")
    driver.know(a, b)
    assert named(driver) == ["a", "b"], "nothing is known to be wanted yet"
    driver.tell(nodes("n4"))
    assert named(driver) == ["a", "b"], "what the plan before has changed is not reported yet"
    driver.tell(nodes(left=("n4",)))
    driver.tell(reported(driver, a, b))
    assert named(driver) == [], "that job a or b does not get n4 after all is what JobManager knows"
    driver.tell(reported(driver, a, b))
    driver.tell(nodes("n5"))
    assert len(named(driver)) == 1


def test_a_refused_plan_leaves_nothing_to_be_reported() -> None:
    driver, a = Driver(), cached_job("a", "n1", "n2", "n3")
    driver.know(a)
    driver.tell(reported(driver, a))
    assert named(driver, PlanOutcome.REFUSED) == []
    assert named(driver, PlanOutcome.UNREACHABLE) == []
    assert named(driver) == ["a"], "the plan before may have been applied"


def test_a_plan_names_the_job_of_a_node_that_left_and_came_back() -> None:
    """JobManager has taken it from the job, but has not said so yet: it would lie idle."""
    driver, a, b = Driver(), cached_job("a", "n1", "n2"), cached_job("b", "n3")
    driver.know(a, b)
    driver.tell(reported(driver, a, b))
    assert named(driver) == []
    driver.tell(reported(driver, a, b))
    driver.tell(nodes(left=("n2",)))
    driver.tell(nodes("n2"))
    assert named(driver) == ["a"]


def test_a_growth_is_measured_from_its_command_to_its_confirmation() -> None:
    driver = Driver()
    driver.know(cached_job("a", "n1"))
    driver.now += 5
    driver.tell(JobsReported((cached_job("a", "n1", "n2", confirmed=("n1",)),)))
    driver.now += 12.5
    (stored,) = driver.tell(JobsReported((cached_job("a", "n1", "n2"),)))
    assert isinstance(stored, StoreGrowths)
    assert [one.seconds for one in stored.measured] == [12.5]
    apply = driver.until(ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    assert [entry.boot_seconds for entry in apply.plan.problem.whole.jobs] == [12.5 - CURVE.scale_up_seconds]


def test_generations_are_above_what_job_manager_has_seen() -> None:
    driver = Driver()
    driver.tell(nodes("n1", snapshot=True))
    driver.tell(profiles("a"))
    driver.tell(JobsReported((cached_job("a"),), snapshot=True, generation=41))
    apply = driver.until(ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    assert apply.plan.generation == 42


@pytest.mark.parametrize("stimulus", [Due(), Solved(()), PlanAnswered(PlanOutcome.APPLIED)])
def test_what_was_not_asked_is_an_error(stimulus: Stimulus) -> None:
    driver = Driver()
    driver.know(cached_job("a"))
    driver.wait()
    assert driver.machine.phase is PlanPhase.ASKING_AHEAD
    with pytest.raises(UnexpectedStimulusError, match="while waiting for peers' answers"):
        driver.tell(stimulus)


def test_a_plan_that_contradicts_its_problem_is_found() -> None:
    driver = Driver()
    driver.know(cached_job("a"), cached_job("b"))
    apply = driver.until(ApplyPlan)
    assert isinstance(apply, ApplyPlan)
    plan = apply.plan

    def gives(*parts: Assignment) -> Callable[[], None]:
        return lambda: check_plan(replace(plan, allocation=replace(plan.allocation, assignments=parts)), 0)

    gives(*plan.allocation.assignments)()
    for broken, message in (
        (gives(Assignment("a", ("n1",)), Assignment("b", ("n1",))), "gives n1 twice"),
        (gives(Assignment("a", ("n9",))), "gives n9, which are not idle"),
        (lambda: check_plan(plan, plan.generation), "follows"),
    ):
        with pytest.raises(InvariantError, match=message):
            broken()


NAMES = ("n1", "n2", "n3", "n4", "n5")
OWN = {"a": ("n2", "n3"), "b": ("n1",), "c": ("n4", "n5")}


@st.composite
def events(draw: st.DrawFn) -> Stimulus | float:
    """Something that happens, or seconds that pass."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        name = draw(st.sampled_from(NAMES))
        return draw(st.sampled_from([nodes(name), nodes(left=(name,))]))
    if kind == 1:
        name = draw(st.sampled_from("abc"))  # no two jobs hold a node
        return JobsReported((cached_job(name, *draw(st.lists(st.sampled_from(OWN[name]), unique=True))),))
    return profiles(draw(st.sampled_from("abc"))) if kind == 2 else draw(st.sampled_from([0.01, 0.2, 70.0]))


@settings(deadline=None, max_examples=60)
@given(happens=st.lists(events(), max_size=25), refused=st.booleans(), data=st.data())
def test_no_invariant_breaks_and_it_always_goes_on(
    happens: list[Stimulus | float], refused: bool, data: st.DataObject
) -> None:
    """Whatever happens between a question and its answer."""
    driver = Driver()
    driver.know(cached_job("a"), cached_job("b", "n1"))
    outcome = PlanOutcome.REFUSED if refused else PlanOutcome.APPLIED
    for event in [*happens, *([1.0] * 12)]:
        driver.see(event, answers=len(happens) > 20 or data.draw(st.booleans()), outcome=outcome)
    asks, waits = driver.question is not None, driver.machine.phase is PlanPhase.WAITING
    assert asks == (driver.machine.due_at == inf and not waits)
