"""When a plan is due, and why."""

from __future__ import annotations

from dataclasses import replace

from malletrain.allocator.fleets.members import FleetMember
from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.machine.plan_trigger import PlanTrigger, Signature, describe_change
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.spec import FleetSpec
from malletrain.model.job_state import JobState
from tests.allocator.test_planner import cache, profile
from tests.support.builders import cached_job, plannable_nodes


def applied(trigger: PlanTrigger, found: ClusterCache, now: float) -> None:
    trigger.begin()
    trigger.note_applied(found.plan_input(now), now)


def test_what_differs_from_the_last_plan_is_told() -> None:
    found = cache()
    before = Signature.of(found.plan_input(0.0))
    assert describe_change(Signature(), before) == "nodes joined: n1, n2, n3; jobs arrived: a, b"
    found.update_jobs([cached_job("a", "n1", "n2")])
    assert describe_change(before, Signature.of(found.plan_input(0.0))) == "", "our own rescale is no event"
    found.update_nodes([], ["n2"])
    found.update_jobs([cached_job("b", state=JobState.FAILED)])
    assert describe_change(before, Signature.of(found.plan_input(0.0))) == "nodes left: n2; jobs ended: b"


def test_a_node_that_was_away_for_a_moment_is_given_again() -> None:
    """What is there is what the plan was made for; and yet its jobs have lost the node."""
    found, trigger = cache(), PlanTrigger(0.05, 60.0)
    applied(trigger, found, 0.0)
    for refusals in (0, 2):
        found.update_nodes([], ["n2"])
        trigger.note_left(["n2"])
        found.update_nodes(plannable_nodes("n2", expected_stay_seconds=9.0), [])
        for _ in range(refusals):
            assert trigger.reason(found, 1.0, 1.0) == "nodes came back: n2"
            trigger.begin()
            trigger.note_refused()
        assert trigger.reason(found, 1.0, 1.0) == "nodes came back: n2"
        applied(trigger, found, 1.0)
        assert trigger.reason(found, 1.0, 1.0) == ""
    trigger.begin()
    trigger.note_left(["n2"])
    trigger.note_applied(found.plan_input(1.0), 1.0)
    assert trigger.reason(found, 1.0, 1.0) == "nodes came back: n2", "it left while the plan was made"


def test_a_plan_for_a_changed_weight_that_was_not_applied_is_made_again() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    applied(trigger, found, 0.0)
    trigger.note_weights()
    assert trigger.reason(found, 100.0, 100.0) == "weights changed"
    trigger.begin()
    trigger.note_refused()
    assert trigger.reason(found, 101.0, 101.0) == "weights changed", "JobManager could not be reached"
    trigger.begin()
    trigger.note_applied(found.plan_input(102.0), 102.0, in_part=True)
    assert trigger.reason(found, 103.0, 103.0) == ""
    assert trigger.wait_seconds(found, 103.0, 103.0) == 59.0, "one that was applied in part counts as a plan"
    assert trigger.reason(found, 162.0, 162.0) == "weights changed"
    applied(trigger, found, 162.0)
    assert trigger.reason(found, 300.0, 300.0) == ""


def test_weights_of_owners_that_change_alone_lead_to_no_plan() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    applied(trigger, found, 100.0)
    plannable = replace(cached_job("a").plannable, share_weight=0.5, owner="ada")
    found.update_jobs([replace(cached_job("a"), plannable=plannable)])
    assert trigger.reason(found, 1000.0, 1000.0) == ""
    assert trigger.wait_seconds(found, 1000.0, 1000.0) is None
    assert found.plan_input(1000.0).jobs[0].share_weight == 0.5, "the next plan has them"


def test_of_many_names_the_first_are_told() -> None:
    nodes = frozenset(f"n{index}" for index in range(10))
    told = describe_change(Signature(), Signature(nodes))
    assert told == "nodes joined: n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"


def test_a_plan_is_due_when_a_pin_comes_and_when_it_ends() -> None:
    found, trigger = cache(), PlanTrigger(0.0)
    applied(trigger, found, 0.0)
    found.update_profiles([profile("a", ScalePin(2, True, 50.0)), profile("b", ScalePin(0, False, 60.0))])
    assert trigger.reason(found, 0.0, 0.0) == "scale pinned: a at 2, b as it is"
    applied(trigger, found, 0.0)
    assert trigger.wait_seconds(found, 10.0, 10.0) == 40.0
    assert trigger.reason(found, 50.0, 50.0) == "scale no longer pinned: a at 2"


def test_nothing_is_due_before_nodes_and_jobs_are_known_nor_after_a_plan() -> None:
    trigger = PlanTrigger(60.0)
    assert trigger.reason(ClusterCache(), 0.0, 0.0) == ""
    assert trigger.wait_seconds(ClusterCache(), 0.0, 0.0) is None
    found = cache()
    assert trigger.reason(found, 0.0, 0.0).startswith("nodes joined")
    applied(trigger, found, 0.0)
    assert trigger.reason(found, 1e9, 1e9) == ""
    assert trigger.wait_seconds(found, 1.0, 1.0) is None


def test_curves_that_change_by_themselves_lead_to_a_plan_now_and_then() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    applied(trigger, found, 100.0)
    trigger.note_curves()
    assert trigger.reason(found, 130.0, 130.0) == ""
    assert trigger.wait_seconds(found, 130.0, 130.0) == 30.0
    assert trigger.reason(found, 160.0, 160.0) == "curves changed"
    applied(trigger, found, 160.0)
    assert trigger.wait_seconds(found, 161.0, 161.0) is None
    never = PlanTrigger(0.0)
    applied(never, found, 100.0)
    never.note_curves()
    assert never.wait_seconds(found, 1e9, 1e9) is None
    assert never.reason(found, 1e9, 1e9) == ""


def test_the_end_of_a_back_off_is_waited_for() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    found.update_jobs([replace(cached_job("a", state=JobState.WAITING), not_before=30.0)])
    applied(trigger, found, 10.0)
    assert trigger.wait_seconds(found, 10.0, 10.0) == 20.0
    assert trigger.reason(found, 30.0, 30.0) == "jobs arrived: a"


def test_a_refused_plan_is_made_again_after_pauses_that_double() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    waits = []
    for _ in range(7):
        assert trigger.reason(found, 0.0, 0.0)
        trigger.begin()
        trigger.note_refused()
        waits.append(trigger.wait_seconds(found, 0.0, 0.0))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    applied(trigger, found, 0.0)
    assert trigger.wait_seconds(found, 0.0, 0.0) is None


def test_fleets_by_remaining_work_are_divided_again_after_some_time() -> None:
    found, trigger = cache(), PlanTrigger(0.0, 900.0)
    applied(trigger, found, 100.0)
    assert trigger.wait_seconds(found, 200.0, 200.0) is None, "there is no fleet"
    for planner, again in ((FleetPlanner.FLEET, False), (FleetPlanner.AUTO, True), (FleetPlanner.MAKESPAN, True)):
        member = FleetMember("f1", "m", FleetSpec(planner=planner))
        found.update_jobs([replace(cached_job("a"), plannable=replace(cached_job("a").plannable, member=member))])
        applied(trigger, found, 100.0)
        assert trigger.wait_seconds(found, 200.0, 200.0) == (800.0 if again else None)
        assert trigger.reason(found, 999.0, 999.0) == ""
        assert trigger.reason(found, 1000.0, 1000.0) == ("remaining work of fleets" if again else "")
        applied(trigger, found, 1000.0)
        assert trigger.reason(found, 1001.0, 1001.0) == ""
        assert PlanTrigger(0.0, 0.0).wait_seconds(found, 0.0, 0.0) is None


def test_a_refused_plan_that_is_no_longer_due_is_not_made_again() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    applied(trigger, found, 0.0)
    found.update_nodes(plannable_nodes("n4", expected_stay_seconds=9.0))
    trigger.begin()
    trigger.note_refused()
    found.update_nodes([], ["n4"])
    assert trigger.reason(found, 0.0, 0.0) == ""
    assert trigger.wait_seconds(found, 0.0, 0.0) is None


def test_a_plan_that_was_applied_in_part_is_followed_by_another() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    applied(trigger, found, 0.0)
    found.update_nodes(plannable_nodes("n4", expected_stay_seconds=9.0))
    trigger.begin()
    trigger.note_applied(found.plan_input(1.0), 1.0, in_part=True)
    assert trigger.wait_seconds(found, 1.0, 1.0) == 0.1
    assert trigger.reason(found, 1.1, 1.1) == "nodes joined: n4"
    applied(trigger, found, 1.2)
    assert trigger.reason(found, 1.2, 1.2) == ""


def test_a_stop_that_was_planned_leads_to_no_plan_without_its_nodes_before_it_takes_long() -> None:
    found, trigger = cache(), PlanTrigger(0.0)
    found.update_jobs([cached_job("b", "n2")])
    applied(trigger, found, 100.0)
    stopping = replace(cached_job("b", "n2", state=JobState.STOPPING), stopping_since=100.0)
    found.update_jobs([cached_job("a", "n1", wanted_nodes=("n1", "n2")), stopping])
    assert trigger.reason(found, 100.5, 100.5) == "jobs ended: b"
    applied(trigger, found, 100.5)
    assert trigger.wait_seconds(found, 100.5, 100.5) == 1.5
    assert trigger.reason(found, 102.0, 102.0) == "nodes left: n2"


def test_a_weight_of_its_own_that_a_job_is_given_leads_to_a_plan_as_curves_do() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    applied(trigger, found, 100.0)
    heavier = [replace(cached_job("a"), plannable=replace(cached_job("a").plannable, weight=4.0))]
    assert not found.has_other_weights([cached_job("a"), cached_job("new")])
    assert found.has_other_weights(heavier)
    found.update_jobs(heavier)
    assert not found.has_other_weights(heavier)
    trigger.note_weights()
    assert trigger.reason(found, 130.0, 130.0) == ""
    assert trigger.wait_seconds(found, 130.0, 130.0) == 30.0
    assert trigger.reason(found, 160.0, 160.0) == "weights changed"
    trigger.note_curves()
    assert trigger.reason(found, 160.0, 160.0) == "curves and weights changed"
    applied(trigger, found, 160.0)
    assert trigger.wait_seconds(found, 161.0, 161.0) is None
