"""Everything that is said of a plan is found again by trying all plans, with the alternative forced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.explanation.nodes import node_account
from malletrain.allocator.explanation.plan_parts import parts_to_proto
from malletrain.allocator.explanation.worth import PartExplainer, PlannedPart, Reason, Worth
from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.objective import permitted_sizes, rates, scale_values
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import allocation_to_proto, problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import NotFoundError, PreconditionError
from malletrain.v1 import allocator_pb2
from tests.allocator.test_owner_limits import keeps_limits, owned_problems

SLOW = settings(deadline=None, max_examples=50)

Condition = Callable[[tuple[int, ...]], bool]


def by_trying(problem: AllocationProblem, condition: Condition = lambda _: True) -> float:
    """The best objective of all plans that meet a condition; minus infinity where there is none."""
    per_job = [scale_values(job, problem) for job in problem.jobs]
    best = float("-inf")
    for choice in product(*(range(len(scales.sizes)) for scales in per_job)):
        counts = tuple(int(scales.sizes[place]) for scales, place in zip(per_job, choice, strict=True))
        if keeps_limits(problem, counts) and condition(counts):
            best = max(best, sum(float(scales.values[place]) for scales, place in zip(per_job, choice, strict=True)))
    return best


def on_pool_of(problem: AllocationProblem, nodes: int) -> float:
    """The best objective where the jobs may have so many nodes together; what they hold stays as it is."""
    larger = replace(problem, nodes=(*problem.nodes, "one more"))
    return by_trying(larger, lambda counts: sum(counts) <= nodes)


def planned(problem: AllocationProblem, pins: dict[str, ScalePin] | None = None) -> PlannedPart:
    part = apply_pins(problem, pins or {})
    answer = part.complete(solve(part.rest))
    return PlannedPart("", part, {entry.job_id: entry.nodes for entry in answer.assignments})


def near(amount: float, problem: AllocationProblem) -> object:
    """An amount, within what rounding of the objective's largest terms may add."""
    largest = sum(float(abs(scale_values(job, problem).values).max()) for job in problem.jobs)
    return pytest.approx(amount, rel=1e-9, abs=1e-8 * max(1.0, largest))


@SLOW
@given(problem=owned_problems())
def test_every_loss_is_that_of_the_best_plan_with_the_alternative_forced(problem: AllocationProblem) -> None:
    part = planned(problem)
    explainer = PartExplainer(part)
    optimum = by_trying(problem) if problem.jobs else 0.0
    for index, job in enumerate(problem.jobs):
        account = explainer.job(job.id, all_scales=True)
        sizes = [int(size) for size in permitted_sizes(job, len(problem.nodes))]
        assert [worth.nodes for worth in account.scales] == sizes
        for worth in (*account.scales, *filter(None, (account.more, account.fewer))):
            forced = by_trying(problem, lambda counts, at=index, size=worth.nodes: counts[at] == size)  # type: ignore[misc]
            assert worth.possible == (forced > float("-inf"))
            if worth.possible:
                assert worth.loss == near(optimum - forced, problem)
                own = worth.value - account.chosen.value
                assert worth.others_loss == near(worth.loss + own, problem)


@SLOW
@given(problem=owned_problems())
def test_a_node_is_worth_what_the_optimum_gains_or_loses_by_it(problem: AllocationProblem) -> None:
    account = PartExplainer(planned(problem)).account()
    pool = len(problem.nodes)
    optimum = on_pool_of(problem, pool)
    assert account.objective == near(optimum, problem)
    assert account.one_more_gain == near(on_pool_of(problem, pool + 1) - optimum, problem)
    assert account.one_fewer_loss == near(optimum - on_pool_of(problem, pool - 1) if pool else 0.0, problem)


@SLOW
@given(problem=owned_problems(), data=st.data())
def test_what_pins_cost_is_what_the_optimum_without_them_is_better(
    problem: AllocationProblem, data: st.DataObject
) -> None:
    pins = {
        job.id: ScalePin(data.draw(st.integers(0, 6)), data.draw(st.booleans()), until=1.0)
        for job in problem.jobs
        if data.draw(st.booleans())
    }
    part = planned(problem, pins)
    account = PartExplainer(part).account()
    taken = part.problem.pinned
    expected = by_trying(problem) - account.objective if taken else 0.0
    assert account.pin_cost == near(expected, problem)
    assert account.pinned == sum(part.count(job_id) for job_id in taken)
    for job_id in taken:
        told = PartExplainer(part).job(job_id)
        assert (told.more_reason, told.fewer_reason, told.more) == (Reason.PINNED, Reason.PINNED, None)
        assert told.chosen.nodes == part.count(job_id)


@SLOW
@given(problem=owned_problems())
def test_each_reason_is_true(problem: AllocationProblem) -> None:
    part = planned(problem)
    explainer = PartExplainer(part)
    pool = len(problem.nodes)
    for job in problem.jobs:
        account = explainer.job(job.id)
        more, chosen = account.more, account.chosen
        limit = problem.owner_limits.get(job.owner, pool)
        match account.more_reason:
            case Reason.MAXIMUM:
                assert more is None
                assert job.curve[-1].nodes >= job.max_nodes
                assert chosen.nodes == max(permitted_sizes(job, job.max_nodes))
            case Reason.CURVE_END:
                assert more is None
                assert job.curve[-1].nodes < job.max_nodes
            case Reason.POOL_TOO_SMALL:
                assert more is not None
                assert more.nodes > pool
            case Reason.OWNER_LIMIT:
                assert more is not None
                assert account.owner_nodes + more.nodes - chosen.nodes > limit
            case Reason.NO_FASTER:
                assert more is not None
                assert more.rate <= chosen.rate
                assert more.loss > 0
            case Reason.RESCALE_COST:
                assert more is not None
                assert more.rate > chosen.rate
                assert more.value <= chosen.value
            case Reason.OTHERS_GAIN_MORE:
                assert more is not None
                assert more.others_loss > more.value - chosen.value > 0
            case Reason.TIE:
                assert more is not None
                assert more.loss == 0
            case _:
                raise AssertionError(account.more_reason)
        assert account.fewer_reason in {Reason.WORTH_IT, Reason.TIE, Reason.WAITS}
        assert (account.fewer_reason is Reason.WAITS) == (chosen.nodes == 0)


@SLOW
@given(problem=owned_problems())
def test_with_the_needed_rate_the_alternative_is_as_good_as_the_plan(problem: AllocationProblem) -> None:
    part = planned(problem)
    explainer = PartExplainer(part)
    optimum = by_trying(problem) if problem.jobs else 0.0
    for index, job in enumerate(problem.jobs):
        for worth in explainer.job(job.id, all_scales=True).scales:
            if worth.needed_rate:
                assert problem.objective_metric is ObjectiveMetric.THROUGHPUT
                faster = replace(problem, jobs=with_rate(problem.jobs, index, worth))
                forced = by_trying(faster, lambda counts, at=index, size=worth.nodes: counts[at] == size)  # type: ignore[misc]
                assert forced == pytest.approx(optimum, rel=1e-6, abs=1e-6 * max(1.0, abs(worth.needed_rate)))


def with_rate(jobs: tuple[JobDemand, ...], index: int, worth: Worth) -> tuple[JobDemand, ...]:
    job = jobs[index]
    sizes = range(1, job.curve[-1].nodes + 1)
    points = (
        ScalingPoint(size, worth.needed_rate if size == worth.nodes else float(rate))
        for size, rate in zip(sizes, rates(job, list(sizes)), strict=True)
    )
    return (*jobs[:index], replace(job, curve=tuple(points)), *jobs[index + 1 :])


@SLOW
@given(problem=owned_problems(), stays=st.lists(st.sampled_from([0.0, 5.0, 60.0, 900.0]), min_size=8, max_size=8))
def test_a_node_is_where_the_rule_of_placement_says(problem: AllocationProblem, stays: list[float]) -> None:
    problem = replace(problem, expected_stay_seconds=dict(zip(problem.nodes, stays, strict=False)))
    part = planned(problem)
    accounts = [node_account(part.problem, "", part.assignments, name) for name in problem.nodes]
    for account in accounts:
        holders = [job.id for job in problem.jobs if account.name in job.current_nodes]
        assert account.before == "".join(holders)
        assert account.after == "".join(job for job, nodes in part.assignments.items() if account.name in nodes)
    shrunk = [account for account in accounts if account.before and account.after in ("", account.before)]
    for account in (entry for entry in shrunk if entry.rank):
        # Kept are those of the best ranks, as many as the job still has.
        assert bool(account.after) == (account.rank <= account.scale[1])
    free = [account for account in accounts if account.before != account.after or not account.before]
    handed_out = sum(bool(account.after) for account in free)
    for account in free:
        if not (account.before and not account.after):
            assert bool(account.after) == (account.rank <= handed_out)


def part_message() -> allocator_pb2.Plan:
    """A plan on two pools, with a pinned job."""
    curve = (ScalingPoint(1, 100.0), ScalingPoint(8, 700.0))
    demands = tuple(
        JobDemand(f"j{index}", 1, 8, curve, 5.0, 5.0, current_nodes=held, owner="ada")
        for index, held in enumerate([("a1", "a2"), ("b1",), ()])
    )
    problem = AllocationProblem(("a1", "a2", "b1", "b2", "b3"), 120.0, demands)
    plan_input = PlanInput(
        nodes=tuple(PlannableNode(name, pool=name[0]) for name in problem.nodes),
        jobs=tuple(PlannableJob(job.id, 1, 8, current_nodes=job.current_nodes) for job in demands),
        curves={job.id: JobCurve(job.curve, 5.0, 5.0) for job in demands},
        pins={"j1": ScalePin(2, grow=True, until=1.0)},
    )
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    made = plan_problem(plan_input, options)
    allocation = made.allocation([solve(part.rest) for part in made.parts])
    return allocator_pb2.Plan(
        generation=7,
        applied=True,
        problem=problem_to_proto(made.whole),
        allocation=allocation_to_proto(allocation),
        parts=parts_to_proto(made, {node.name: node.pool for node in plan_input.nodes}),
    )


def test_a_stored_plan_is_explained_by_pools_and_pins() -> None:
    plan = part_message()
    found = explain_plan(allocator_pb2.Plan.FromString(plan.SerializeToString()))
    assert [(part.pool, part.nodes, part.pinned_nodes) for part in found.parts] == [("a", 2, 0), ("b", 3, 2)]
    assert sum(part.objective for part in found.parts) == pytest.approx(plan.allocation.objective)
    jobs = {entry.job_id: entry for entry in found.jobs}
    assert {name: entry.pool for name, entry in jobs.items()} == {"j0": "a", "j1": "b", "j2": "b"}
    assert jobs["j1"].more_reason == allocator_pb2.SCALE_REASON_PINNED
    assert jobs["j0"].more_reason == allocator_pb2.SCALE_REASON_POOL_TOO_SMALL
    assert found.parts_known
    assert all(entry.sentences for entry in found.jobs)
    assert all(part.sentences for part in found.parts)


def test_one_job_is_told_with_all_its_scales_and_a_node_with_its_jobs() -> None:
    plan = part_message()
    (job,) = explain_plan(plan, job_id="j0").jobs
    assert [worth.nodes for worth in job.scales] == [0, 1, 2]
    told = explain_plan(plan, node="b2")
    assert told.node.name == "b2"
    assert told.node.pool == "b"
    assert {entry.job_id for entry in told.jobs} == {told.node.job_after}


@pytest.mark.parametrize("asked", ["j7", "j1"])
def test_a_member_of_a_fleet_is_explained_as_its_fleet(asked: str) -> None:
    plan = part_message()
    plan.fleets.add(fleet_id="j1", members=[allocator_pb2.Assignment(job_id="j7", nodes=["b1#0"])])
    found = explain_plan(plan, job_id=asked)
    assert [entry.job_id for entry in found.jobs] == ["j1"]
    assert [fleet.fleet_id for fleet in found.fleets] == ["j1"]
    assert not explain_plan(plan, job_id="j0").fleets


@pytest.mark.parametrize("asked", [{"job_id": "j9"}, {"node": "c1"}])
def test_what_the_plan_does_not_know_is_not_found(asked: dict[str, str]) -> None:
    with pytest.raises(NotFoundError, match="plan 7 does not know"):
        explain_plan(part_message(), **asked)


def test_a_plan_of_an_earlier_version_is_explained_as_a_whole() -> None:
    plan = part_message()
    del plan.parts[:]
    found = explain_plan(plan)
    assert not found.parts_known
    assert [part.nodes for part in found.parts] == [5]
    assert [entry.job_id for entry in found.jobs] == ["j0", "j1", "j2"]


def test_a_plan_that_is_too_large_is_refused_before_anything_is_solved() -> None:
    plan = part_message()
    del plan.parts[:]
    plan.problem.nodes.extend(f"x{index}" for index in range(100_000))
    for job in plan.problem.jobs:
        job.owner = "ada"
    plan.problem.owner_limits["ada"] = 5
    with pytest.raises(PreconditionError, match="too large"):
        explain_plan(plan)
