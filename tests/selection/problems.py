"""Problems for the tests, and an answer by trying everything."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from malletrain.selection.problem import (
    FreeResources,
    MachineResources,
    Objectives,
    ReservedResources,
    ResourceRequest,
    SelectionProblem,
    objectives_of,
)
from malletrain.selection.rule import WasteReading

TABLE_1 = SelectionProblem(
    MachineResources(100, 100),
    FreeResources(100, 0, 100),
    tuple(ResourceRequest(*row) for row in ((80, 20), (10, 85), (40, 5), (10, 0), (20, 0))),
)


@st.composite
def problems(draw: st.DrawFn, *, most: int = 8, plain: bool = False) -> SelectionProblem:
    """Small problems with ties of every kind; with reservations and SSDs unless `plain`."""
    ssd = not plain and draw(st.booleans())
    small, large = draw(st.integers(1, 12)), draw(st.integers(1, 12)) if ssd else 0
    machine = MachineResources(small + large, draw(st.integers(0, 20)), large, 128 * ssd, 256 * ssd)
    free = FreeResources(
        draw(st.integers(0, small)), draw(st.integers(0, large)), draw(st.integers(0, machine.burst_buffer_gb))
    )
    sizes = st.sampled_from([0, 50, 128, 129, 256]) if ssd else st.just(0)
    request = st.builds(ResourceRequest, st.integers(1, 6), st.integers(0, 9), sizes)
    jobs = tuple(draw(st.lists(request, max_size=most)))
    reserved = None
    if not plain and draw(st.booleans()):
        then = FreeResources(
            draw(st.integers(free.small, small)),
            draw(st.integers(free.large, large)),
            draw(st.integers(free.burst_buffer_gb, machine.burst_buffer_gb)),
        )
        job = draw(request)
        room = then.large if machine.wants_large(job) else then.nodes
        if job.nodes <= room and job.burst_buffer_gb <= then.burst_buffer_gb:
            reserved = ReservedResources(job, then, tuple(draw(st.booleans()) for _ in jobs))
    places = draw(st.none() | st.integers(0, most))
    return SelectionProblem(machine, free, jobs, reserved, places)


def is_feasible(problem: SelectionProblem, chosen: tuple[int, ...]) -> bool:
    """Straight from the definition."""
    machine, free, jobs = problem.machine, problem.free, problem.jobs
    large = sum(jobs[index].nodes for index in chosen if machine.wants_large(jobs[index]))
    small = sum(jobs[index].nodes for index in chosen) - large
    if (
        large > free.large
        or small + large > free.nodes
        or len(chosen) > (problem.places or len(jobs) * (problem.places is None))
    ):
        return False
    if sum(jobs[index].burst_buffer_gb for index in chosen) > free.burst_buffer_gb:
        return False
    if problem.reserved is None:
        return True
    wanted, then = problem.reserved.job, problem.reserved.free_then
    late = [index for index in chosen if problem.reserved.late[index]]
    late_large = sum(jobs[index].nodes for index in late if machine.wants_large(jobs[index]))
    late_small = sum(jobs[index].nodes for index in late) - late_large
    if sum(jobs[index].burst_buffer_gb for index in late) > then.burst_buffer_gb - wanted.burst_buffer_gb:
        return False
    if machine.wants_large(wanted):
        return late_large + min(late_small, max(0, small - free.small)) <= then.large - wanted.nodes
    return late_small + late_large <= then.nodes - wanted.nodes


def feasible(problem: SelectionProblem) -> list[tuple[int, ...]]:
    """All selections that fit, those with the jobs at the front first."""
    flags = itertools.product((1, 0), repeat=len(problem.jobs))
    every = (tuple(index for index, flag in enumerate(row) if flag) for row in flags)
    return [chosen for chosen in every if is_feasible(problem, chosen)]


def vector(point: Objectives) -> tuple[int, int, int, int]:
    """All to be maximised."""
    return (point.nodes, point.burst_buffer_gb, point.ssd_gb, -point.wasted_gb)


def dominates(one: Objectives, other: Objectives) -> bool:
    return one != other and all(a >= b for a, b in zip(vector(one), vector(other), strict=True))


def brute_front(problem: SelectionProblem) -> dict[tuple[int, int, int, int], tuple[int, ...]]:
    """Points of the Pareto set, each with its first selection."""
    found: dict[tuple[int, int, int, int], tuple[int, ...]] = {}
    for chosen in feasible(problem):
        found.setdefault(vector(objectives_of(problem, chosen)), chosen)
    points = {point: Objectives(point[0], point[1], point[2], -point[3]) for point in found}
    return {
        point: chosen
        for point, chosen in found.items()
        if not any(dominates(points[rival], points[point]) for rival in points)
    }


def shares(
    problem: SelectionProblem, point: tuple[int, int, int, int]
) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    machine = problem.machine
    totals = (machine.nodes, machine.burst_buffer_gb or 1, machine.ssd_gb or 1, machine.ssd_gb or 1)
    nodes, burst_buffer, ssd, waste = (Fraction(a, b) for a, b in zip(point, totals, strict=True))
    return nodes, burst_buffer, ssd, waste


def brute_rule(
    problem: SelectionProblem, factor: int, waste: WasteReading = WasteReading.FIRST_CHOICE
) -> tuple[int, ...]:
    """BBSched's rule as the paper words it, on the set of all optimal selections."""
    front = brute_front(problem)
    order = {chosen: rank for rank, chosen in enumerate(feasible(problem))}
    first = min(front, key=lambda point: (-point[0], order[front[point]]))
    start = shares(problem, first)
    better = []
    for point, chosen in front.items():
        here = shares(problem, point)
        gain = sum(here[1:3]) - sum(start[1:3])
        if waste is WasteReading.FIRST_CHOICE and first[3]:
            gain += Fraction(first[3] - point[3], first[3])
        else:
            gain += here[3] - start[3]
        if gain > factor * (start[0] - here[0]):
            better.append((-gain, -point[0], order[chosen], chosen))
    return min(better)[3] if better else front[first]


def recorded_problem(values: Any) -> SelectionProblem:
    """A problem as in windows-sample.json."""
    machine = values["machine"]
    large = machine["nodes_with_256gb_ssd"]
    ssd = (128, 256) if machine["ssd"] else (0, 0)
    reserved = values["reserved"] and ReservedResources(
        ResourceRequest(*values["reserved"]["job"]),
        FreeResources(*values["reserved"]["free_then"]),
        tuple(values["reserved"]["late"]),
    )
    return SelectionProblem(
        MachineResources(machine["nodes"], machine["burst_buffer_gb"], large, *ssd),
        FreeResources(*values["free"]),
        tuple(ResourceRequest(*job) for job in values["jobs"]),
        reserved,
    )
