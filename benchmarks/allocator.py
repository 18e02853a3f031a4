"""Solve times of the Allocator's formulations: `python benchmarks/allocator.py [--json] [--quick]`.

All formulations are measured in one run. Curves go up to 64 nodes and have the shape of the published ImageNet scaling
of seven networks: about linear, with steps that make them not concave. Jobs hold half of the nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.problem.allocation_problem import AllocationProblem, Formulation, JobDemand
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire import messages
from malletrain.model.scaling import ScalingPoint
from malletrain.v1 import allocator_pb2

_SCALES = (1, 2, 4, 8, 16, 32, 64)


def random_problem(jobs: int, nodes: int, rng: random.Random) -> AllocationProblem:
    names = tuple(f"n{index}" for index in range(nodes))
    free = list(names)
    demands = []
    for index in range(jobs):
        held = tuple(free.pop() for _ in range(min(len(free), rng.randint(0, max(1, nodes // jobs)))))
        demands.append(random_job(f"j{index}", held[:64], rng))
    return AllocationProblem(nodes=names, forward_seconds=120.0, jobs=tuple(demands))


def random_job(name: str, held: Sequence[str], rng: random.Random) -> JobDemand:
    rate = rng.uniform(1000, 7000)
    points = []
    for scale in _SCALES:
        points.append(ScalingPoint(scale, rate))
        rate *= rng.uniform(1.55, 2.05)
    return JobDemand(
        id=name,
        min_nodes=1,
        max_nodes=64,
        curve=tuple(points),
        scale_up_seconds=rng.uniform(10, 25),
        scale_down_seconds=rng.uniform(5, 15),
        current_nodes=tuple(held),
    )


def measure(
    name: str, shape: tuple[int, int], formulation: Formulation, repeats: int, limit: float, process: SolverProcess
) -> dict[str, object]:
    rng = random.Random(shape[0] * 10_007 + shape[1])
    seconds, fallbacks, gaps = [], 0, [0.0]
    for _ in range(repeats):
        problem = random_problem(*shape, rng)
        started = time.perf_counter()
        answer = solve(problem, formulation, limit, process)
        seconds.append(time.perf_counter() - started)
        fallbacks += bool(answer.fallback_reason)
        if formulation is not Formulation.DP and not answer.fallback_reason:
            exact = solve(problem, Formulation.DP).objective
            gaps.append(abs(answer.objective - exact) / max(1.0, abs(exact)))
    seconds.sort()
    return {
        "formulation": name,
        "jobs": shape[0],
        "nodes": shape[1],
        "problems": repeats,
        "median_ms": 1000 * statistics.median(seconds),
        "p99_ms": 1000 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
        "fallbacks": fallbacks,
        "largest_relative_gap": max(gaps),
    }


def measure_explanations(shape: tuple[int, int], owners: int, repeats: int) -> dict[str, object]:
    """How long `ExplainPlan` of a whole plan takes, with as many owners who have a limit each; 0: none has."""
    rng = random.Random(shape[0] * 10_007 + shape[1])
    seconds = []
    for _ in range(repeats):
        problem = random_problem(*shape, rng)
        if owners:
            jobs = tuple(replace(job, owner=f"o{index % owners}") for index, job in enumerate(problem.jobs))
            limits = {f"o{index}": shape[1] * 3 // (2 * owners) for index in range(owners)}
            problem = replace(problem, jobs=jobs, owner_limits=limits)
        part = allocator_pb2.PlanPart(forward_seconds=problem.forward_seconds, owner_limits=problem.owner_limits)
        allocation = messages.allocation_to_proto(solve(problem))
        plan = allocator_pb2.Plan(problem=messages.problem_to_proto(problem), allocation=allocation, parts=[part])
        started = time.perf_counter()
        explain_plan(plan)
        seconds.append(time.perf_counter() - started)
    seconds.sort()
    return {
        "formulation": f"explain/{owners}" if owners else "explain",
        "jobs": shape[0],
        "nodes": shape[1],
        "problems": repeats,
        "median_ms": 1000 * statistics.median(seconds),
        "p99_ms": 1000 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
        "fallbacks": 0,
        "largest_relative_gap": 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the problems")
    arguments = parser.parse_args()
    share = 10 if arguments.quick else 1
    process = SolverProcess()
    solve(random_problem(2, 4, random.Random(0)), Formulation.COUNTS, 10, process)  # starts the solver's process
    rows = [
        measure("dp", (10, 85), Formulation.DP, 200 // share, 60, process),
        measure("dp", (35, 800), Formulation.DP, 200 // share, 60, process),
        measure("dp", (1000, 10_000), Formulation.DP, max(1, 10 // share), 60, process),
        measure("counts", (10, 85), Formulation.COUNTS, 50 // share, 60, process),
        measure("counts", (35, 800), Formulation.COUNTS, 30 // share, 60, process),
        measure("milp", (10, 85), Formulation.MILP, 50 // share, 60, process),
        measure("milp", (35, 800), Formulation.MILP, 30 // share, 60, process),
        measure("nodes", (5, 20), Formulation.NODES, max(1, 5 // share), 60, process),
        measure("nodes", (10, 60), Formulation.NODES, max(1, 3 // share), 60, process),
        measure_explanations((35, 800), 0, max(1, 20 // share)),
        measure_explanations((100, 1000), 0, max(1, 20 // share)),
        measure_explanations((100, 1000), 10, max(1, 10 // share)),
    ]
    process.close()
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    heads = ("jobs", "nodes", "problems", "median ms", "p99 ms", "fallbacks", "gap")
    widths = (6, 8, 10, 12, 12, 11, 10)
    print(f"{'formulation':<12}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for row in rows:
        print(
            f"{row['formulation']:<12}{row['jobs']:>6}{row['nodes']:>8}{row['problems']:>10}{row['median_ms']:>12.2f}"
            f"{row['p99_ms']:>12.2f}{row['fallbacks']:>11}{row['largest_relative_gap']:>10.1e}"
        )


if __name__ == "__main__":
    main()
