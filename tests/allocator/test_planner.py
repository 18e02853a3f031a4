"""From what the services report to the problem of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import is_

import pytest

from malletrain.allocator.fleets.members import LateRate
from malletrain.allocator.machine.cluster_cache import CachedProfile, ClusterCache
from malletrain.allocator.problem.allocation_problem import CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve, PlannableNode, PlannedValue, build_problem, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.allocator.problem.validation import validate
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import problem_from_proto, problem_to_proto
from malletrain.model.goodput import GradientNoise, StatisticalEfficiency
from malletrain.model.job_state import JobState
from malletrain.model.job_value import LINEAR, ValueCurve
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.job_values import parse_value
from tests.support.builders import cached_job, plannable_nodes

OPTIONS = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
CURVE = JobCurve((ScalingPoint(1, 10.0), ScalingPoint(4, 30.0)), 2.0, 0.0)


def profile(name: str, pin: ScalePin | None = None) -> CachedProfile:
    return CachedProfile(name, CURVE, pin)


def cache() -> ClusterCache:
    found = ClusterCache()
    found.update_nodes(plannable_nodes("n1", "n2", "n3", expected_stay_seconds=9.0), snapshot=True)
    found.update_jobs([cached_job("a", "n1"), cached_job("b"), cached_job("c", admitted=False)], snapshot=True)
    found.update_profiles(map(profile, "abc"))
    return found


def test_a_problem_holds_the_admitted_jobs_and_the_idle_nodes() -> None:
    problem = build_problem(cache().plan_input(0.0), OPTIONS)
    validate(problem)
    assert problem.nodes == ("n1", "n2", "n3")
    assert [(entry.id, entry.current_nodes) for entry in problem.jobs] == [("a", ("n1",)), ("b", ())]
    assert problem.jobs[0].scale_up_seconds == 2
    assert problem.expected_stay_seconds["n2"] == 9.0


def test_no_plan_is_made_before_both_nodes_and_jobs_are_known() -> None:
    found = ClusterCache()
    assert not found.complete
    found.update_nodes(plannable_nodes("n1", expected_stay_seconds=9.0), snapshot=True)
    assert not found.complete
    found.update_jobs([], snapshot=True)
    assert found.complete


def test_a_node_that_left_is_not_current() -> None:
    found = cache()
    found.update_nodes([], ["n1"])
    problem = build_problem(found.plan_input(0.0), OPTIONS)
    assert (problem.nodes, problem.jobs[0].current_nodes) == (("n2", "n3"), ())


def test_newer_stays_are_taken_over_for_known_nodes_only() -> None:
    found = cache()
    found.update_stays([PlannableNode("n2", 77.0), PlannableNode("n9", 5.0)])
    assert build_problem(found.plan_input(0.0), OPTIONS).expected_stay_seconds == {"n1": 9.0, "n2": 77.0, "n3": 9.0}


def test_stays_of_all_nodes_count_until_a_node_leaves_or_joins_anew() -> None:
    found = cache()
    found.update_stays([PlannableNode("n1", 70.0, "main")], {"n1": 70.0, "n2": 60.0, "n9": 5.0})
    assert found.plan_input(0.0).expected_stays == {"n1": 70.0, "n2": 60.0, "n3": 9.0}
    assert found.pool_of("n1") == "main"
    found.update_nodes(plannable_nodes("n2", expected_stay_seconds=9.0), ["n1"])
    assert found.plan_input(0.0).expected_stays == {"n2": 9.0, "n3": 9.0}
    found.update_stays([PlannableNode("n3", 50.0)], {"n2": 40.0, "n3": 50.0})
    found.update_stays([PlannableNode("n2", 30.0)])
    assert found.plan_input(0.0).expected_stays == {"n2": 30.0, "n3": 50.0}, "another Scavenger lists its nodes"


def test_a_job_of_which_nothing_has_changed_is_the_same_object_in_the_next_problem() -> None:
    found = cache()

    def demands() -> tuple[JobDemand, ...]:
        return build_problem(found.plan_input(0.0), OPTIONS).jobs

    before = demands()
    found.update_nodes(plannable_nodes("n4", expected_stay_seconds=9.0))
    assert all(map(is_, before, demands()))
    found.update_profiles([profile("b")])
    found.update_nodes([], ["n1"])  # which job a has
    assert demands()[0].current_nodes == ()
    found.update_nodes(plannable_nodes("n1", expected_stay_seconds=9.0))
    assert demands() == before


def test_newer_stays_do_not_change_what_a_node_is() -> None:
    found = cache()
    found.update_nodes([PlannableNode("n2", 5.0, "main/a100x4", 4, "a100", ("ib",), ("s1", "r1"))])
    found.update_stays([PlannableNode("n2", 77.0, "main/a100x4", 4)])
    assert PlannableNode("n2", 77.0, "main/a100x4", 4, "a100", ("ib",), ("s1", "r1")) in found.nodes


def test_a_stopping_job_and_its_nodes_stay_out() -> None:
    found = cache()
    found.update_jobs([cached_job("a", "n1", state=JobState.STOPPING, wanted_nodes=("n2",))])
    problem = build_problem(found.plan_input(0.0), OPTIONS)
    assert problem.nodes == ("n3",)
    assert [entry.id for entry in problem.jobs] == ["b"]


def test_a_job_that_backs_off_waits_for_its_time() -> None:
    found = cache()
    found.update_jobs([replace(cached_job("a", state=JobState.WAITING), not_before=100.0)])
    assert [entry.id for entry in found.plan_input(99.0).jobs] == ["b"]
    assert found.next_eligible(99.0) == 100.0
    assert [entry.id for entry in found.plan_input(100.0).jobs] == ["a", "b"]
    assert found.next_eligible(100.0) is None


def test_ended_jobs_are_forgotten_and_unknown_curves_are_waited_for() -> None:
    found = cache()
    found.update_jobs([cached_job("a", state=JobState.COMPLETED), cached_job("d")])
    assert [entry.id for entry in found.plan_input(0.0).planned_jobs] == ["b"]


def test_a_pin_ends_at_its_time() -> None:
    found = cache()
    found.update_profiles([profile("a", ScalePin(2, True, 50.0))])
    assert found.plan_input(49.0).pins == {"a": ScalePin(2, True, 50.0)}
    assert found.plan_input(50.0).pins == {}
    assert found.next_unpinned(49.0) == 50.0
    assert found.next_unpinned(50.0) is None


def test_generations_are_above_our_last_one_and_those_that_jobs_have_seen() -> None:
    found = cache()
    assert found.next_generation(7) == 8
    found.update_jobs([replace(cached_job("b"), plan_generation=40)])
    assert found.next_generation(7) == 41
    found.note_generation(50)
    assert found.next_generation(7) == 51
    assert ClusterCache().next_generation(0) == 1


def test_a_plan_is_solved_by_pools_with_pinned_scales_first() -> None:
    found = ClusterCache()
    others = plannable_nodes("c1", "c2", "c3", "c4", expected_stay_seconds=9.0)
    found.update_nodes([*plannable_nodes("g1", pool="gpu", expected_stay_seconds=9.0), *others], snapshot=True)
    found.update_jobs([cached_job("a", "c1", "c2"), cached_job("b"), cached_job("d", "g1")], snapshot=True)
    found.update_profiles([profile("a", ScalePin(1, False, 50.0)), profile("b"), profile("d")])
    problem = plan_problem(found.plan_input(0.0), OPTIONS)
    allocation = problem.allocation([solve(part.rest) for part in problem.parts])
    assert {entry.job_id: entry.nodes for entry in allocation.assignments} == {
        "a": ("c1",),
        "b": ("c2", "c3", "c4"),
        "d": ("g1",),
    }
    whole = plan_problem(found.plan_input(0.0), replace(OPTIONS, span_pools=True))
    assert len(whole.parts) == 1


@pytest.mark.parametrize(("growth", "boot"), [(0.0, 0.0), (2.0, 0.0), (10.0, 7.0), (1000.0, 50.0)])
def test_the_boot_is_what_a_growth_takes_less_its_stall_and_half_of_the_forward_time_at_most(
    growth: float, boot: float
) -> None:
    found = cache()
    plan_input = replace(found.plan_input(0.0), growth_seconds={"a": growth})
    curves = {"a": replace(plan_input.curves["a"], scale_up_seconds=3.0)}
    options = replace(OPTIONS, forward=ForwardTime(100.0))
    demand = build_problem(replace(plan_input, curves=curves), options).jobs[0]
    assert demand.boot_seconds == boot


def test_the_input_of_a_plan_is_made_anew_only_where_something_has_changed() -> None:
    found = cache()
    found.update_jobs([replace(cached_job("b"), not_before=50.0)])
    found.update_profiles([profile("a", ScalePin(2, True, 80.0))])
    first = found.plan_input(10.0)
    assert found.plan_input(49.9) is first
    eligible = found.plan_input(50.0)
    assert [one.id for one in first.jobs] + ["b"] == [one.id for one in eligible.jobs]
    assert (set(eligible.pins), set(found.plan_input(80.0).pins)) == ({"a"}, set())
    assert found.plan_input(10.0) == first, "also where the clock was set back"
    changes: tuple[Callable[[], None], ...] = (
        lambda: found.update_nodes(plannable_nodes("n9", expected_stay_seconds=9.0)),
        lambda: found.update_stays(plannable_nodes("n9", expected_stay_seconds=99.0)),
        lambda: found.update_jobs([cached_job("c")]),
        lambda: found.update_profiles([profile("d")]),
        lambda: found.update_late_rates({"c": LateRate(1, 2.0)}),
    )
    for change in changes:
        before = found.plan_input(100.0)
        change()
        assert found.plan_input(100.0) != before


def test_nodes_that_go_from_a_stopping_job_to_another_are_planned_on_unless_the_stop_takes_long() -> None:
    found = cache()
    growing = cached_job("a", "n1", wanted_nodes=("n1", "n2"))
    stopping = replace(cached_job("b", "n2", "n3", state=JobState.STOPPING), stopping_since=100.0)
    found.update_jobs([growing, stopping])
    assert found.plan_input(100.1).busy_nodes == {"n3"}, "nobody was promised n3"
    found.update_jobs([replace(stopping, stopping_since=101.0)])
    assert found.next_overdue(101.5) == 102.0, "it stops since it was first said to"
    assert found.plan_input(101.9).busy_nodes == {"n3"}
    assert found.plan_input(102.0).busy_nodes == {"n2", "n3"}
    assert found.next_overdue(102.0) is None
    found.update_jobs([cached_job("b")])
    assert found.plan_input(102.1).busy_nodes == frozenset()


def test_a_stopping_job_promises_its_own_nodes_to_nobody() -> None:
    found = cache()
    moving = cached_job("b", "n2", state=JobState.STOPPING, wanted_nodes=("n2", "n3"), stopping_since=100.0)
    found.update_jobs([moving])
    assert found.plan_input(100.1).busy_nodes == {"n2", "n3"}


def test_a_deadline_becomes_a_speed_that_is_needed_by_fresh_samples_and_the_time() -> None:
    found = cache()
    job = cached_job("b")
    due = PlannedValue(parse_value("deadline=1000s:3"), submitted=100.0, target_samples=5000)
    found.update_jobs([replace(job, plannable=replace(job.plannable, value=due))])
    assert found.deadlines == ("b",)
    found.update_samples({"a": 7, "b": 1000})
    problem = build_problem(replace(found.plan_input(600.0), unix_seconds=600.0), OPTIONS)
    assert [entry.value for entry in problem.jobs] == [LINEAR, ValueCurve(needed_rate=8.0, urgency=3.0)]
    assert problem_from_proto(problem_to_proto(problem)).jobs[1].value == problem.jobs[1].value


def test_goodput_counts_once_the_training_has_told_its_noise_scale() -> None:
    plan_input = cache().plan_input(0.0)
    valued = replace(plan_input.jobs[1], value=PlannedValue(parse_value("goodput")))
    plan_input = replace(plan_input, jobs=(plan_input.jobs[0], valued))
    assert [job.value for job in build_problem(plan_input, OPTIONS).jobs] == [LINEAR, LINEAR]
    told = replace(plan_input.curves["b"], noise=GradientNoise(900.0, 32.0))
    problem = build_problem(replace(plan_input, curves={**plan_input.curves, "b": told}), OPTIONS)
    initial = 32.0 * valued.min_nodes
    expected = ValueCurve(efficiency=StatisticalEfficiency(900.0, 32.0, initial))
    assert [job.value for job in problem.jobs] == [LINEAR, expected]
    assert problem_from_proto(problem_to_proto(problem)).jobs[1].value == expected
    everyone = {job_id: replace(curve, noise=GradientNoise(900.0, 32.0)) for job_id, curve in plan_input.curves.items()}
    assert build_problem(replace(plan_input, curves=everyone), OPTIONS).jobs[0].value == LINEAR, "it is off by default"
