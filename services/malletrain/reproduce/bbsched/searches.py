"""BBSched's exhibits without trials: the example, solve times by window, and the genetic algorithm's distance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from malletrain.reproduce.bbsched.trials import LOADS, ORIGINAL, RECIPES, TABLE_1, TIMES
from malletrain.reproduce.exhibits import Cell, Exhibit, round_cells
from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.generations import GeneticParameters
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import (
    FreeResources,
    MachineResources,
    Objectives,
    ResourceRequest,
    SelectionProblem,
    objectives_of,
)
from malletrain.selection.select import SelectionSettings, SelectionSolver, front_of, genetic_front_of, select
from malletrain.simulator.batch.generated import PROFILES, WorkloadRecipe, derive, generate, original_requests
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.running import BASELINE, schedule_of
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines


def generational_distance(points: Sequence[Objectives], true: Sequence[Objectives], machine: MachineResources) -> float:
    """Mean distance of the found points to the nearest true one, with objectives as shares of the machine.

    Raises:
        InvalidInputError: one of the sets is empty.
    """
    if not points or not true:
        raise InvalidInputError("points, true", "at least one point each", (len(points), len(true)))
    exact = [_shares(point, machine) for point in true]
    return fmean(min(math.dist(_shares(point, machine), other) for other in exact) for point in points)


def _shares(point: Objectives, machine: MachineResources) -> tuple[float, float, float, float]:
    ssd = machine.ssd_gb or 1
    return (
        point.nodes / machine.nodes,
        point.burst_buffer_gb / (machine.burst_buffer_gb or 1),
        point.ssd_gb / ssd,
        point.wasted_gb / ssd,
    )


_PROBLEMS = 10
_POPULATIONS, _GENERATIONS = (10, 20, 50), (50, 100, 200, 500, 1000, 2000)
_TB = 1000


def example() -> Exhibit:
    """Table 1: five jobs on 100 nodes with 100 TB."""
    requests = tuple(ResourceRequest(*row) for row in ((80, 20), (10, 85), (40, 5), (10, 0), (20, 0)))
    problem = SelectionProblem(MachineResources(100, 100), FreeResources(100, 0, 100), requests)
    rows: list[tuple[Cell, ...]] = []
    for method, published in TABLE_1.items():
        chosen = select(
            problem, SelectionSettings(SelectionMethod.IN_ORDER if method == BASELINE else SelectionMethod(method))
        ).chosen
        used = objectives_of(problem, chosen)
        jobs = ", ".join(f"J{index + 1}" for index in chosen)
        rows.append((method, f"{jobs}: {used.nodes} %, {used.burst_buffer_gb} %", published))
    return Exhibit("table-1", "Table 1: an example", ("method", "ours", "published"), tuple(rows), "The same.")


def workloads(jobs: int) -> Exhibit:
    """Table 2: what was generated."""
    rows: list[tuple[Cell, ...]] = []
    for machine, profile in PROFILES.items():
        plain = generate(profile, jobs, LOADS[machine], 0)
        for recipe in RECIPES:
            originals = original_requests(profile, 0)
            workload = plain if recipe == ORIGINAL else derive(plain, WorkloadRecipe(recipe), 0, originals)
            asking = [job.burst_buffer_gb for job in workload.jobs if job.burst_buffer_gb]
            share = 100 * len(asking) / len(workload.jobs)
            rows.append(
                (
                    f"{machine}-{recipe}",
                    profile.nodes,
                    profile.burst_buffer_gb // _TB,
                    len(workload.jobs),
                    share,
                    max(asking, default=0) / _TB,
                    sum(asking) / _TB,
                )
            )
    heads = ("workload", "nodes", "burst buffer, TB", "jobs", "% that ask for it", "largest request, TB", "all, TB")
    remark = (
        "Published: Cori 2,607,054 jobs in four months, 0.618 % with a request up to 165 TB; Theta 70,507 jobs in five "
        "months, 17.18 % with up to 285 TB. The logs are not public; ours are generated. Of Theta's requests the "
        "distribution (lognormal, median 10 TB) is assumed. Cori's keep to what is published: a third of its 1.8 PB is "
        "reserved persistently, 33 % of the requests are above 1 TB, most are at most 65 TB and a few 165 TB; its "
        "numbers of nodes are chosen so that usage in S1 to S4 is near the published one. The first and last tenth "
        "are not measured."
    )
    return Exhibit("table-2", "Table 2 and Fig. 5: workloads", heads, round_cells(rows), remark)


def windows(size: int, rng: random.Random) -> list[SelectionProblem]:
    """Windows of jobs like Theta-S4's, with room for a quarter to half of them."""
    profile = PROFILES["theta"]
    machine = MachineResources(profile.nodes, profile.burst_buffer_gb)
    workload = derive(generate(profile, 400, 0.8, rng.randint(0, 10**6)), WorkloadRecipe.S4, 0)
    problems = []
    for _ in range(_PROBLEMS):
        jobs = tuple(job.request for job in rng.sample(workload.jobs, size))
        room = rng.uniform(0.25, 0.5)
        nodes = min(machine.nodes, int(room * sum(job.nodes for job in jobs)))
        burst_buffer = min(machine.burst_buffer_gb, int(room * sum(job.burst_buffer_gb for job in jobs)))
        problems.append(SelectionProblem(machine, FreeResources(nodes, 0, burst_buffer), jobs))
    return problems


def solve_times(clock: Callable[[], float], rng: random.Random) -> Exhibit:
    """Fig. 2: time of one decision by the size of the window."""
    rows: list[tuple[Cell, ...]] = []
    solvers = {"exact": SelectionSolver.EXACT, "genetic": SelectionSolver.GENETIC}
    for size in (5, 10, 15, 20, 25):
        problems = windows(size, rng)
        times: list[float] = []
        for solver in solvers.values():
            began_s = clock()
            for problem in problems:
                select(problem, SelectionSettings(solver=solver, most_visits=10**9))
            times.append(1000 * (clock() - began_s) / len(problems))
        rows.append((size, *times))
    series = {
        name: ([float(row[0] or 0) for row in rows], [float(row[index] or 0) for row in rows])
        for index, name in enumerate(solvers, 1)
    }
    return Exhibit(
        "figure-2",
        "Fig. 2: time of a decision by window",
        ("window", "exact, ms", "genetic, ms"),
        round_cells(rows),
        TIMES,
        lines("Fig. 2: time of a decision", "jobs in the window", Axis("ms", log=True), series),
        measured=True,
    )


def distances(rng: random.Random) -> Exhibit:
    """Fig. 4: generational distance by generations and population."""
    problems = windows(16, rng)
    fronts = [[point.objectives for point in front_of(problem)] for problem in problems]
    rows: list[tuple[Cell, ...]] = []
    for generations in _GENERATIONS:
        means = []
        for population in _POPULATIONS:
            parameters = GeneticParameters(population, generations)
            means.append(
                fmean(
                    generational_distance(
                        [point.objectives for point in genetic_front_of(problem, replace(parameters, seed=seed))],
                        front,
                        problem.machine,
                    )
                    for seed, (problem, front) in enumerate(zip(problems, fronts, strict=True))
                )
            )
        rows.append((generations, *means))
    series = {
        f"P = {population}": ([float(row[0] or 0) for row in rows], [float(row[index] or 0) for row in rows])
        for index, population in enumerate(_POPULATIONS, 1)
    }
    heads = ("generations", *(f"GD, P = {population}" for population in _POPULATIONS))
    remark = "Published: the distance falls as G and P grow; P = 20 and G = 500 are taken. Exact search has distance 0."
    return Exhibit(
        "figure-4",
        "Fig. 4: generational distance",
        heads,
        round_cells(rows),
        remark,
        lines("Fig. 4: generational distance", "generations", "GD", series),
    )


def solve_statistics(clock: Callable[[], float], jobs: int) -> Exhibit:
    """Times of all selections of one simulation."""
    profile = PROFILES["theta"]
    workload = derive(generate(profile, jobs, LOADS["theta"], 0), WorkloadRecipe.S4, 0)
    from malletrain.simulator.batch.policies import WindowSettings

    counts = schedule_of(workload, policy_named(profile.policy), WindowSettings(), clock=clock)[1]
    times = sorted(1000 * time_s for time_s in counts.solve_s)
    row = (len(times), fmean(times), times[int(0.99 * (len(times) - 1))], times[-1], counts.genetic_answers)
    return Exhibit(
        "solve-times",
        "Times of the selections of a simulation of Theta-S4",
        ("selections", "mean, ms", "99 %, ms", "worst, ms", "by the genetic algorithm"),
        round_cells([row]),
        TIMES,
        measured=True,
    )
