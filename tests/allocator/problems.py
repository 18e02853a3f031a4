"""Random allocation problems: valid, and full of edge cases."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.objective import scale_values
from malletrain.model.scaling import RescaleStall, ScalingPoint

RATES = st.one_of(st.sampled_from([0.0, 1.0, 100.0]), st.floats(0.1, 1e5, allow_nan=False))
SECONDS = st.sampled_from([0.0, 1.0, 12.5, 200.0])


@st.composite
def curves(draw: st.DrawFn, largest: int) -> tuple[ScalingPoint, ...]:
    """Curves of any shape: not concave, falling, flat; the first point need not be at 1 node."""
    scales = draw(st.lists(st.integers(1, largest), min_size=1, max_size=4, unique=True).map(sorted))
    rates = draw(st.lists(RATES, min_size=len(scales), max_size=len(scales)))
    rates[0] = rates[0] or 1.0
    return tuple(ScalingPoint(scale, rate) for scale, rate in zip(scales, rates, strict=True))


@st.composite
def stalls(draw: st.DrawFn, smallest: int, largest: int) -> tuple[RescaleStall, ...]:
    """Stalls of pairs of scales, some of them permitted scales."""
    scales = st.integers(max(1, smallest - 1), largest + 1)
    pairs = draw(st.sets(st.tuples(st.integers(0, largest), scales), max_size=4))
    return tuple(RescaleStall(before, after, draw(SECONDS)) for before, after in sorted(pairs) if before != after)


@st.composite
def problems(draw: st.DrawFn, max_jobs: int = 4, most_nodes: int = 8) -> AllocationProblem:
    """Jobs below their minimum, minima above the pool, size lists, equal jobs, no jobs, no nodes."""
    nodes = tuple(f"n{index}" for index in range(draw(st.integers(0, most_nodes))))
    holders = draw(st.lists(st.integers(0, max_jobs), min_size=len(nodes), max_size=len(nodes)))
    same = draw(st.one_of(st.none(), curves(6)))
    jobs = []
    for index in range(draw(st.integers(0, max_jobs))):
        smallest = draw(st.integers(1, most_nodes + 2))
        largest = smallest + draw(st.integers(0, 5))
        sizes = st.lists(st.integers(smallest, largest), unique=True, max_size=3).map(sorted).map(tuple)
        jobs.append(
            JobDemand(
                id=f"j{index}",
                min_nodes=smallest,
                max_nodes=largest,
                curve=same or draw(curves(largest + 1)),
                scale_up_seconds=draw(SECONDS),
                scale_down_seconds=draw(SECONDS),
                weight=draw(st.sampled_from([1.0, 0.5, 3.0])),
                current_nodes=tuple(node for node, holder in zip(nodes, holders, strict=True) if holder == index),
                permitted_nodes=draw(sizes),
                stalls=draw(stalls(smallest, largest)),
                boot_seconds=draw(SECONDS),
            )
        )
    return AllocationProblem(
        nodes=nodes,
        forward_seconds=draw(st.sampled_from([1.0, 20.0, 120.0])),
        jobs=tuple(jobs),
        cost_model=draw(st.sampled_from(list(CostModel))),
        objective_metric=draw(st.sampled_from(list(ObjectiveMetric))),
    )


def brute_force(problem: AllocationProblem) -> float:
    """The best objective, by trying every combination of counts."""
    per_job = [scale_values(job, problem) for job in problem.jobs]
    best = 0.0 if not per_job else float("-inf")
    for choice in product(*(range(len(scales.sizes)) for scales in per_job)):
        if sum(int(scales.sizes[i]) for scales, i in zip(per_job, choice, strict=True)) <= len(problem.nodes):
            best = max(best, sum(float(scales.values[i]) for scales, i in zip(per_job, choice, strict=True)))
    return best
