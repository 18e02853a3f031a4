"""No owner gets more nodes than its limit, and within the limits every formulation is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    Formulation,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.objective import ScaleValues, scale_rates, scale_values
from malletrain.allocator.problem.planner import JobCurve, PlanInput, build_problem
from malletrain.allocator.problem.pools import PlannerOptions, split
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.problem.validation import validate
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters, best_counts, present_counts
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup, owner_groups
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import problem_from_proto, problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError
from tests.allocator.problems import problems
from tests.allocator.test_ties import a_job, job_of
from tests.support.builders import demand, plannable, plannable_nodes

SLOW = settings(deadline=None, max_examples=60)
LIMIT_SECONDS = 60.0
OWNERS = ("ada", "bob", "eve", "")
LINEAR = (ScalingPoint(1, 100.0), ScalingPoint(8, 800.0))


@st.composite
def owned_problems(draw: st.DrawFn, max_jobs: int = 4, most_nodes: int = 8) -> AllocationProblem:
    """Problems whose jobs have owners, some of them without a limit."""
    problem = draw(problems(max_jobs, most_nodes))
    jobs = tuple(replace(job, owner=draw(st.sampled_from(OWNERS))) for job in problem.jobs)
    limits = draw(st.dictionaries(st.sampled_from(["ada", "bob", "nobody"]), st.integers(0, most_nodes + 1)))
    return replace(problem, jobs=jobs, owner_limits=limits)


def keeps_limits(problem: AllocationProblem, counts: Sequence[int]) -> bool:
    used: Counter[str] = Counter()
    for job, count in zip(problem.jobs, counts, strict=True):
        used[job.owner] += count
    within = all(used[owner] <= limit for owner, limit in problem.owner_limits.items())
    return within and sum(counts) <= len(problem.nodes)


def best_by_trying(problem: AllocationProblem) -> float:
    per_job = [scale_values(job, problem) for job in problem.jobs]
    choices = product(*(range(len(scales.sizes)) for scales in per_job))
    return max(
        sum(float(scales.values[place]) for scales, place in zip(per_job, choice, strict=True))
        for choice in choices
        if keeps_limits(problem, [int(scales.sizes[place]) for scales, place in zip(per_job, choice, strict=True)])
    )


def counts_of(problem: AllocationProblem, formulation: Formulation = Formulation.DP) -> list[int]:
    return [len(entry.nodes) for entry in solve(problem, formulation).assignments]


@settings(SLOW, max_examples=200)
@given(problem=owned_problems())
def test_the_dynamic_programme_is_exact_within_the_limits(problem: AllocationProblem) -> None:
    answer = solve(problem, Formulation.DP)
    assert keeps_limits(problem, [len(entry.nodes) for entry in answer.assignments])
    assert answer.objective == pytest.approx(best_by_trying(problem), rel=1e-9, abs=1e-9)


@SLOW
@given(problem=owned_problems())
def test_all_formulations_agree_within_the_limits(process: SolverProcess, problem: AllocationProblem) -> None:
    best = best_by_trying(problem)
    for formulation in (Formulation.COUNTS, Formulation.NODES, Formulation.MILP):
        answer = solve(problem, formulation, LIMIT_SECONDS, process)
        assert answer.solver == f"highs-{formulation.value}", answer.fallback_reason
        assert keeps_limits(problem, [len(entry.nodes) for entry in answer.assignments])
        assert answer.objective == pytest.approx(best, rel=1e-6, abs=1e-6)


@settings(deadline=None, max_examples=200)
@given(problem=problems(max_jobs=5, most_nodes=12), limit=st.integers(0, 14))
def test_one_owner_is_a_smaller_pool(problem: AllocationProblem, limit: int) -> None:
    per_job = [scale_values(job, problem) for job in problem.jobs]
    group = OwnerGroup("ada", tuple(range(len(per_job))), limit)
    groups = (group,) if per_job else ()
    pool = len(problem.nodes)
    assert best_counts(per_job, pool, groups) == best_counts(per_job, min(pool, limit) if per_job else pool)


@settings(deadline=None, max_examples=200)
@given(problem=owned_problems(max_jobs=5, most_nodes=12))
def test_limits_that_do_not_bind_change_nothing(problem: AllocationProblem) -> None:
    free = replace(problem, owner_limits={})
    if keeps_limits(problem, counts_of(free)):
        assert solve(problem).assignments == solve(free).assignments


@settings(deadline=None, max_examples=300)
@given(
    jobs=st.lists(a_job(), max_size=4),
    pool=st.integers(0, 14),
    owners=st.lists(st.sampled_from(OWNERS), min_size=4, max_size=4),
    limit=st.integers(0, 8),
)
def test_ties_within_limits_change_the_fewest_jobs_and_then_take_the_fewest_nodes(
    jobs: list[ScaleValues], pool: int, owners: list[str], limit: int
) -> None:
    groups = owner_groups(owners[: len(jobs)], {"ada": limit, "bob": limit})

    def rank(counts: Sequence[int]) -> tuple[float, int, int]:
        value = sum(float(job.values[job.index(count)]) for job, count in zip(jobs, counts, strict=True))
        changed = sum(count != job.current for job, count in zip(jobs, counts, strict=True))
        return -value, changed, sum(counts)

    possible = [
        counts
        for counts in product(*(job.sizes.tolist() for job in jobs))
        if sum(counts) <= pool and all(group.keeps(counts) for group in groups)
    ]
    chosen = best_counts(jobs, pool, groups)
    assert all(group.keeps(chosen) for group in groups)
    assert rank(chosen) == min(map(rank, possible))


def test_what_one_owner_may_not_have_goes_to_the_others() -> None:
    nodes = tuple(f"n{index}" for index in range(8))
    fast = tuple(ScalingPoint(point.nodes, 9 * point.rate) for point in LINEAR)
    jobs = (demand("a1", curve=fast, owner="ada"), demand("a2", curve=fast, owner="ada"))
    other = demand("b1", curve=LINEAR, owner="bob")
    problem = AllocationProblem(nodes, 120.0, (*jobs, other), owner_limits={"ada": 3, "bob": 8})
    assert counts_of(replace(problem, owner_limits={})) == [8, 0, 0]
    assert counts_of(problem) == [3, 0, 5]


def test_many_owners_are_answered_in_little_time() -> None:
    alike = job_of([float(nodes) for nodes in range(65)])
    owners = [f"u{index % 20}" for index in range(200)]
    groups = owner_groups(owners, dict.fromkeys(owners, 30))
    counts = best_counts([alike] * 200, 1000, groups)
    assert all(group.keeps(counts) for group in groups)
    assert sum(counts) == 600


def test_weights_multiply_what_a_job_is_worth() -> None:
    problem = AllocationProblem(("n0", "n1"), 120.0, (demand("a", curve=LINEAR), demand("b", curve=LINEAR, weight=0.9)))
    table = ChoiceTable.of([scale_rates(job, problem.objective_metric, 2) for job in problem.jobs])
    terms = ObjectiveParameters(120.0, CostModel.STALL)
    assert table.choose([0, 0], 2, terms).counts.tolist() == [2, 0]
    weighted = table.choose([0, 0], 2, terms, weights=[0.5, 2.0])
    assert weighted.counts.tolist() == [0, 2]
    assert weighted.objective == pytest.approx(120 * 200 * 0.9 * 2.0)


def test_present_nodes_beyond_the_limit_are_given_up_by_later_jobs() -> None:
    scales = [job_of([0.0, 1.0, 2.0], current) for current in (2, 2, 1)]
    assert present_counts(scales, 9, (OwnerGroup("ada", (0, 1, 2), 3),)) == [2, 0, 1]


def test_pools_share_a_limit_and_keep_what_is_held_there() -> None:
    nodes = tuple(f"n{index}" for index in range(8))
    pools = {node: "x" if index < 4 else "y" for index, node in enumerate(nodes)}
    jobs = tuple(
        demand(name, *held, curve=LINEAR, owner="ada") for name, held in (("a1", nodes[:3]), ("a2", nodes[4:5]))
    )
    problem = AllocationProblem(nodes, 120.0, jobs, owner_limits={"ada": 5})
    parts = split(problem, pools, ForwardTime(120.0))
    assert [part.owner_limits["ada"] for part in parts] == [3, 2]
    alone = split(replace(problem, jobs=jobs[:1]), pools, ForwardTime(120.0))
    assert [part.owner_limits["ada"] for part in alone] == [4, 0], "no more than the pool has"
    tight = split(replace(problem, owner_limits={"ada": 2}), pools, ForwardTime(120.0))
    assert sum(part.owner_limits["ada"] for part in tight) == 2


@settings(deadline=None, max_examples=100)
@given(problem=owned_problems(max_jobs=5, most_nodes=10), data=st.data())
def test_pools_together_never_exceed_a_limit(problem: AllocationProblem, data: st.DataObject) -> None:
    pools = {node: data.draw(st.sampled_from(["x", "y", "z"])) for node in problem.nodes}
    parts = split(problem, pools, ForwardTime(120.0))
    for owner, limit in problem.owner_limits.items():
        assert sum(part.owner_limits[owner] for part in parts) <= limit or len(parts) == 1
    for part in parts:
        validate(part)


def test_pinned_jobs_count_and_none_is_pinned_beyond_the_limit() -> None:
    nodes = tuple(f"n{index}" for index in range(8))
    jobs = (
        demand("a1", *nodes[:3], curve=LINEAR, owner="ada"),
        demand("a2", curve=LINEAR, owner="ada"),
    )
    problem = AllocationProblem(nodes, 120.0, jobs, owner_limits={"ada": 4})
    pinned = apply_pins(problem, {"a1": ScalePin(0, False, 1e9)})
    assert pinned.rest.owner_limits == {"ada": 1}
    assert [len(entry.nodes) for entry in pinned.complete(solve(pinned.rest)).assignments] == [3, 1]
    assert apply_pins(problem, {"a1": ScalePin(6, True, 1e9)}).pinned == {}


def test_a_plan_names_owners_only_where_it_matters() -> None:
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    curve = JobCurve(LINEAR, 10.0, 5.0)
    jobs = (plannable("j1", high=8, owner="ada"), plannable("j2", high=8, weight=3.0, owner="ada", share_weight=0.5))
    given = PlanInput(plannable_nodes("n0"), jobs, curves={"j1": curve, "j2": curve})
    one = build_problem(given, options)
    assert ([job.owner for job in one.jobs], one.owner_limits) == (["", ""], {})
    assert [job.weight for job in one.jobs] == [1.0, 1.5]
    limited = build_problem(given, replace(options, max_nodes_per_owner=4))
    assert ([job.owner for job in limited.jobs], limited.owner_limits) == (["ada", "ada"], {"ada": 4})
    two = build_problem(replace(given, jobs=(jobs[0], replace(jobs[1], owner="bob"))), options)
    assert ([job.owner for job in two.jobs], two.owner_limits) == (["ada", "bob"], {})


def test_messages_keep_owners_limits_and_weights() -> None:
    job = demand("a", curve=LINEAR, weight=1.5, owner="ada", share_weight=0.5)
    problem = AllocationProblem(("n0",), 120.0, (job,), owner_limits={"ada": 4})
    assert problem_from_proto(problem_to_proto(problem)) == problem


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"owner_limits\['ada'\]: expected at least 0"):
        validate(AllocationProblem(("n0",), 120.0, owner_limits={"ada": -1}))
