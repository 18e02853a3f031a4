"""Fleets in plans: one job of the problem each, divided among their members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.fleets.members import FleetDecision
from malletrain.allocator.fleets.placement import place_members
from malletrain.allocator.fleets.planning import assignments, with_fleets
from malletrain.allocator.problem.allocation_problem import Allocation, Assignment, CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime, ObservedChanges
from malletrain.allocator.problem.planner import PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.common.gpus import node_of
from malletrain.fleet.problem import FleetPlanner
from malletrain.model.node_needs import NodeNeeds
from tests.allocator.fleet_plans import FORWARD, RATES, TERMS, after, curve, member, plan_input, planned
from tests.support.builders import plannable, plannable_nodes


def test_a_fleet_is_one_job_of_the_problem_beside_others() -> None:
    other = plannable("j0")
    planning, decisions, parts = planned(plan_input([other, *map(member, RATES)]))
    ids = [job.id for job in planning.plan_input.jobs]
    assert ids == ["j0", "f1"]
    assert set(parts) == {"j0", *RATES}
    held = {node_of(gpu) for job_id in RATES for gpu in parts[job_id]}
    assert held.isdisjoint(parts["j0"])
    assert decisions["f1"].divider is FleetPlanner.FLEET
    assert decisions["f1"].gpus == 2 * len(held)


def test_its_curve_is_what_the_planner_would_train_and_its_weight_is_the_mean() -> None:
    jobs = [member("j1", weight=1.0), member("j3", weight=3.0)]
    planning, _, _ = planned(plan_input(jobs))
    points = planning.plan_input.curves["f1"].points
    # Alike rates: both in a flotilla at the pace of the slower one; on more GPUs the slower one gets the next.
    assert points[0].rate == pytest.approx(2 * 95)
    assert [point.nodes for point in points] == [1, 2, 3, 4]
    assert points[0].rate < points[1].rate <= points[-1].rate
    assert planning.plan_input.jobs[0].weight == 2.0


@pytest.mark.parametrize("planner", [FleetPlanner.FLEET, FleetPlanner.MAKESPAN, FleetPlanner.LIST])
def test_whether_members_share_is_the_same_for_every_planner(planner: FleetPlanner) -> None:
    terms = replace(TERMS, planner=planner, preprocess_rate=60.0, max_nodes=1)
    rates = {}
    for feed in ("data:samples", "", None):
        jobs = [member(name, terms=replace(terms, feed=feed)) for name in ("j1", "j3")]
        _, decisions, parts = planned(plan_input(jobs, ("n1",)))
        assert all(len(parts[name]) == 1 for name in parts)
        rates[feed] = decisions["f1"].rate
    # Both at 60 samples/s, or 60 between them.
    shares = planner is FleetPlanner.FLEET
    assert rates == {
        "data:samples": pytest.approx(120),
        "": pytest.approx(60),
        None: pytest.approx(120 if shares else 60),
    }


def test_auto_sees_whether_members_share() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO, preprocess_rate=60.0, max_nodes=1)
    reasons = {}
    for feed in ("data:samples", "", None):
        jobs = [member(name, terms=replace(terms, feed=feed)) for name in ("j1", "j3")]
        reasons[feed] = planned(plan_input(jobs, ("n1",)))[1]["f1"].reason
    # 10,000 samples each. Flotillas write checkpoints and stall in between; as published only they would share.
    assert reasons["data:samples"].endswith("fleet 168 s, makespan 167 s, list 167 s")
    assert reasons[""].endswith("fleet 336 s, makespan 334 s, list 333 s")
    assert reasons[None].endswith("fleet 168 s, makespan 334 s, list 333 s")


def test_planners_are_compared_anew_when_feeds_have_measured_what_they_prepare() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO, max_nodes=1)

    def fleet_of(feed_rate: float, feed: str | None) -> list[PlannableJob]:
        jobs = [member(name, terms=replace(terms, feed=feed)) for name in ("j1", "j3")]
        return [replace(job, member=replace(job.member, feed_rate=feed_rate)) if job.member else job for job in jobs]

    _, first, parts = planned(plan_input(fleet_of(0.0, None), ("n1",)))
    assert first["f1"].preprocess_rate == 0
    assert first["f1"].divider is FleetPlanner.FLEET
    held = after(plan_input(fleet_of(61.0, None), ("n1",)), parts)
    _, second, _ = planned(held, first["f1"])
    assert second["f1"].preprocess_rate == 61
    assert "fleet 165 s, makespan 329 s" in second["f1"].reason
    # A little more or less changes nothing, also not step by step.
    for rate in (65.0, 70.0, 75.0):
        _, third, _ = planned(after(plan_input(fleet_of(rate, None), ("n1",)), parts), second["f1"])
        assert third["f1"].preprocess_rate == 61
    _, fourth, _ = planned(after(plan_input(fleet_of(80.0, None), ("n1",)), parts), third["f1"])
    assert fourth["f1"].preprocess_rate == 80
    # Without a feed all nodes prepare together; what the file says precedes what is measured.
    _, alone, _ = planned(plan_input(fleet_of(61.0, ""), ("n1",)))
    assert "list 328 s" in alone["f1"].reason
    said = [
        replace(job, member=replace(job.member, terms=replace(terms, preprocess_rate=30.0)))
        for job in fleet_of(61.0, None)
        if job.member
    ]
    assert planned(plan_input(said, ("n1",)))[1]["f1"].preprocess_rate == 30


def test_a_flotilla_goes_on_until_too_few_of_it_train() -> None:
    terms = replace(TERMS, max_nodes=2, rate_tolerance=0.2, active_share=0.6)
    found = plan_input([member(name, terms=terms) for name in RATES], ("n1", "n2"))
    _, first, parts = planned(found)
    flotilla = dict(first["f1"].flotilla)
    assert sum(flotilla.values()) == 4
    assert {name for name, gpus in parts.items() if gpus} == set(flotilla)
    small = min(flotilla, key=lambda name: flotilla[name])
    rest = after(found, parts, small)
    _, second, kept = planned(rest, first["f1"])
    assert dict(second["f1"].flotilla) == flotilla, "GPUs of a member that is done wait for the end of the flotilla"
    assert all(kept[name] == parts[name] for name in kept)
    others = [name for name in flotilla if name != small]
    _, third, _ = planned(after(rest, kept, *others[:-1]), second["f1"])
    assert set(dict(third["f1"].flotilla)) <= {others[-1], "j4"}, "the next one is made of all that are not done"


def test_members_that_rest_keep_their_places() -> None:
    found = plan_input([member("j1"), member("j3")], ("n1",))
    _, first, parts = planned(found)
    resting = replace(after(found, parts, "j3"), resting={"j3": "f1"}, busy_gpus={parts["j3"][0]: "f1"})
    planning, second, kept = planned(resting, first["f1"])
    assert kept == {"j1": parts["j1"]}
    assert second["f1"].flotilla == first["f1"].flotilla
    assert planning.plan_input.jobs[0].current_nodes == ("n1",)


def test_members_get_gpus_of_nodes_that_suit_them_only() -> None:
    needs = NodeNeeds(gpu="a100", excluded_nodes=("n4",))
    jobs = [replace(member(name), needs=needs) for name in ("j1", "j2", "j3")]
    kinds = {"n1": "v100", "n2": "a100", "n3": "a100", "n4": "a100"}
    nodes = tuple(PlannableNode(name, gpu_type=kind, gpus=2) for name, kind in kinds.items())
    other = plannable("k1")
    found = plan_input([*jobs, other])
    _, decisions, parts = planned(replace(found, nodes=nodes))
    given = {node_of(gpu) for name, gpus in parts.items() if name != "k1" for gpu in gpus}
    assert given
    assert given <= {"n2", "n3"}
    assert decisions["f1"].gpus <= 4
    _, _, parts = planned(replace(plan_input(jobs), nodes=nodes[:1]))
    assert not any(parts.values()), "no node suits them"
    held = [replace(member("j1", "n1#0", "n1#1"), needs=needs), *jobs[1:]]
    _, _, parts = planned(replace(plan_input(held), nodes=nodes[:1]))
    assert {node_of(gpu) for gpus in parts.values() for gpu in gpus} == {"n1"}, "what they have they keep"


@settings(deadline=None, max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(["a100", "v100"]), min_size=1, max_size=5),
    held=st.lists(st.integers(0, 9), max_size=4, unique=True),
    number=st.integers(1, 4),
)
def test_members_never_grow_to_nodes_that_do_not_suit_them(kinds: list[str], held: list[int], number: int) -> None:
    needs = NodeNeeds(gpu="a100")
    nodes = tuple(PlannableNode(f"n{place}", gpu_type=kind, gpus=2) for place, kind in enumerate(kinds))
    have = [f"n{gpu // 2}#{gpu % 2}" for gpu in held if gpu // 2 < len(nodes)]
    jobs = [replace(member(f"j{place + 1}", *have[place : place + 1]), needs=needs) for place in range(number)]
    _, _, parts = planned(replace(plan_input([*jobs, plannable("k1")]), nodes=nodes))
    before = {node_of(gpu) for job in jobs for gpu in job.current_nodes}
    given = {node_of(gpu) for name, gpus in parts.items() if name != "k1" for gpu in gpus}
    suited = {node.name for node in nodes if node.gpu_type == "a100"}
    assert given <= suited | before


def test_gpus_that_are_being_released_are_nobodys() -> None:
    terms = replace(TERMS, planner=FleetPlanner.MAKESPAN, max_nodes=1)
    found = plan_input([member("j1", "n1#0", terms=terms), member("j2", terms=terms)], ("n1",))
    found = replace(found, resting={"j9": "f1"}, busy_gpus={"n1#1": "f1"})
    _, _, parts = planned(found)
    assert parts == {"j1": ("n1#0",), "j2": ()}
    _, _, parts = planned(replace(found, resting={}, busy_gpus={}))
    assert parts == {"j1": ("n1#0",), "j2": ("n1#1",)}


def test_nodes_of_a_fleet_that_is_being_stopped_are_no_others() -> None:
    found = plan_input([plannable("j0")], ("n1", "n2"), busy_gpus={"n1#0": "f1"})
    _, decisions, parts = planned(found)
    assert parts == {"j0": ("n2",)}
    assert not decisions


def test_a_node_that_leaves_takes_its_gpus_and_no_other_member_stops() -> None:
    found = plan_input([member("j1"), member("j3")], ("n1", "n2"))
    _, first, parts = planned(found)
    assert all(len(parts[name]) == 2 for name in ("j1", "j3"))
    gone = node_of(parts["j3"][0])
    left = {name: tuple(gpu for gpu in gpus if node_of(gpu) != gone) for name, gpus in parts.items()}
    fewer = replace(after(found, left), nodes=tuple(node for node in found.nodes if node.name != gone))
    _, second, kept = planned(fewer, first["f1"])
    assert kept["j1"]
    assert set(kept["j1"]) <= set(parts["j1"]), "it trains on, on a part of what it has"
    returned = replace(after(fewer, kept), nodes=found.nodes)
    _, _, again = planned(returned, second["f1"])
    assert set(kept["j1"]) <= set(again["j1"])


def test_by_remaining_work_the_longest_gets_most() -> None:
    terms = replace(TERMS, planner=FleetPlanner.MAKESPAN, max_nodes=2)
    _, decisions, parts = planned(plan_input([member(name, terms=terms) for name in ("j1", "j4")], ("n1", "n2")))
    assert len(parts["j4"]) > len(parts["j1"]) >= 1
    assert decisions["f1"].reason == "makespan as the fleet asks for"


def test_the_quickest_planner_is_chosen_and_kept() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO)
    found = plan_input([member(name, terms=terms) for name in RATES])
    _, first, parts = planned(found)
    assert first["f1"].divider is not FleetPlanner.AUTO
    assert "shortest" in first["f1"].reason or "shorter" in first["f1"].reason
    assert first["f1"].compared_gpus == 8
    _, second, same = planned(after(found, parts), first["f1"])
    assert (second["f1"].divider, second["f1"].reason) == (first["f1"].divider, first["f1"].reason)
    assert same == parts, "a plan that is made again changes nothing"


def test_a_slow_feed_makes_flotillas_the_choice() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO, preprocess_rate=100.0)
    found = plan_input([member(name, terms=terms) for name in ("j1", "j3")])
    _, decisions, _ = planned(found)
    assert decisions["f1"].divider is FleetPlanner.FLEET
    assert decisions["f1"].pace <= 100.0


def test_flotillas_whose_checkpoints_take_long_are_not_the_choice() -> None:
    # Two flotillas of one member each; preprocessing, which only flotillas share, is what limits.
    terms = replace(TERMS, planner=FleetPlanner.AUTO, max_nodes=1, preprocess_rate=60.0, rate_tolerance=0.7)
    chosen = {}
    for seconds in (0.0, 1000.0):
        own = replace(terms, checkpoint_seconds=seconds)
        _, decisions, _ = planned(plan_input([member(name, terms=own) for name in ("j1", "j2", "j3")], ("n1",)))
        chosen[seconds] = decisions["f1"].divider
    assert chosen[0.0] is FleetPlanner.FLEET
    assert chosen[1000.0] is not FleetPlanner.FLEET


def test_whole_nodes_are_divided_by_the_allocator() -> None:
    terms = replace(TERMS, planner=FleetPlanner.MILP)
    _, decisions, parts = planned(plan_input([member(name, terms=terms) for name in ("j1", "j2", "j3")]))
    for gpus in parts.values():
        nodes = {node_of(gpu) for gpu in gpus}
        assert len(gpus) == 2 * len(nodes)
    assert sum(map(len, parts.values())) == 8
    assert decisions["f1"].divider is FleetPlanner.MILP


def test_profiles_of_others_leave_fleets_what_they_have_and_members_have_none() -> None:
    other = plannable("j0", "n3")
    pins = {"j0": ScalePin(0, False, 99.0), "j1": ScalePin(1, True, 99.0)}
    found = plan_input([other, member("j1", "n1#0"), member("j3", "n1#1")], pins=pins)
    planning, _, parts = planned(found)
    assert planning.plan_input.pins == {"j0": pins["j0"], "f1": ScalePin(0, False, 99.0)}
    assert {node_of(gpu) for name in ("j1", "j3") for gpu in parts[name]} == {"n1"}


def test_members_that_stall_anyway_move_to_fewer_nodes() -> None:
    terms = replace(TERMS, planner=FleetPlanner.FLEET, max_nodes=2, rate_tolerance=0.2)
    jobs = [member("j1", "n2#0", terms=terms), member("j3", "n2#1", terms=terms)]
    found = plan_input(jobs, ("n1", "n2"))
    before = FleetDecision("f1", FleetPlanner.FLEET, flotilla=(("j1", 1), ("j3", 1)), gpus=2)
    _, _, parts = planned(found, before)
    assert sorted(map(sorted, parts.values())) == [["n1#0", "n1#1"], ["n2#0", "n2#1"]]


def test_members_whose_number_of_gpus_stays_never_move() -> None:
    held = {"a": frozenset({("n1", 0), ("n2", 1)}), "b": frozenset({("n1", 1)})}
    usable = {"n1": (0, 1), "n2": (0, 1), "n3": (0, 1)}
    found = place_members({"a": 2, "b": 2, "c": 1}, usable, held)
    assert found["a"] == held["a"]
    assert found["b"] == frozenset({("n3", 0), ("n3", 1)})
    assert len(found["c"]) == 1


def test_a_member_waits_for_gpus_that_are_just_being_released() -> None:
    usable = {"n1": (1,), "n2": ()}
    assert place_members({"a": 2, "b": 1}, usable, {"b": frozenset({("n1", 1)})}) == {"b": frozenset({("n1", 1)})}


def test_nobody_stops_for_a_member_that_rests() -> None:
    terms = replace(TERMS, max_nodes=2, rate_tolerance=0.2)
    jobs = [member("j1", "n2#0", terms=terms), member("j3", "n2#1", terms=terms)]
    found = plan_input(jobs, ("n2",), resting={"j2": "f1"})
    before = FleetDecision("f1", FleetPlanner.FLEET, flotilla=(("j1", 1), ("j3", 1), ("j2", 2)), gpus=4)
    _, decisions, parts = planned(found, before)
    assert parts == {"j1": ("n2#0",), "j3": ("n2#1",)}
    assert dict(decisions["f1"].flotilla)["j2"] == 2


def test_members_get_permitted_scales_only() -> None:
    jobs = [replace(member("j1"), permitted_nodes=(1, 4)), replace(member("j3"), min_nodes=2)]
    _, _, parts = planned(plan_input(jobs, ("n1", "n2")))
    assert len(parts["j1"]) in (0, 1, 4)
    assert len(parts["j3"]) != 1
    assert parts["j1"] or parts["j3"]


def test_without_fleets_nothing_is_changed() -> None:
    found = plan_input([plannable("j0")])
    planning = with_fleets(found, FORWARD, {})
    assert planning.plan_input is found
    assert planning.fleets == ()


@given(st.data())
def test_plans_fit_whatever_happens(data: st.DataObject) -> None:
    names = [f"j{number}" for number in range(1, 6)]
    divider = data.draw(st.sampled_from(list(FleetPlanner)))
    terms = replace(TERMS, planner=divider, max_nodes=data.draw(st.integers(1, 4)))
    rates = {name: data.draw(st.sampled_from([10.0, 30.0, 45.0, 50.0, 100.0])) for name in names}
    nodes = ("n1", "n2", "n3", "n4")
    found = plan_input([plannable("j0", high=2), *(member(name, terms=terms) for name in names)], nodes)
    found = replace(found, curves={**found.curves, **{name: curve(rate) for name, rate in rates.items()}})
    before: FleetDecision | None = None
    for _ in range(5):
        _, decisions, parts = planned(found, before)
        before = decisions.get("f1", before)
        used = {node_of(gpu) for name, gpus in parts.items() if name != "j0" for gpu in gpus}
        assert len(used) <= terms.max_nodes
        found = after(found, parts, *data.draw(st.lists(st.sampled_from([*names, "j0"]), max_size=1)))
        there = set(data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True)))
        left = {job.id: tuple(name for name in job.current_nodes if node_of(name) in there) for job in found.jobs}
        found = replace(after(found, left), nodes=plannable_nodes(*(name for name in nodes if name in there)))
        if not any(job.member for job in found.jobs):
            return


def test_assignments_name_every_member_in_place_of_the_fleet() -> None:
    _, decisions, parts = planned(plan_input([member("j1"), member("j4")]))
    assert set(parts) == {"j1", "j4"}
    assert dict(decisions["f1"].members) == parts
    allocation = Allocation(0.0, "OPTIMAL", "dp", 0.0, (Assignment("f1", ("n1",)),))
    expected = tuple(Assignment(job_id, gpus) for job_id, gpus in decisions["f1"].members)
    assert assignments(allocation, decisions.values()) == expected


def test_a_fleet_looks_as_far_ahead_as_other_jobs() -> None:
    changes = ObservedChanges(job_seconds=3600.0, node_seconds=7200.0, changed_nodes=100.0)
    found = plan_input([member(name) for name in RATES], changes=changes)
    forward = ForwardTime(120.0, ForwardPolicy.EXPECTED)
    whole = plan_problem(found, PlannerOptions(forward, CostModel.STALL, ObjectiveMetric.THROUGHPUT)).whole
    fleet = with_fleets(found, forward, {}).fleets[0]
    assert fleet.live.forward_s == whole.forward_seconds < 120.0
