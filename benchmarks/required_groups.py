"""How good and quick plans are whose jobs require one rack: `python benchmarks/required_groups.py [--json] [--quick]`.

Random problems: nodes in racks, elastic jobs of which a share must be in one rack each, and of which some have nodes
already. Each is solved as the Allocator does it, and without the requirement. CPU time is without that of HiGHS.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import TopologyPreference

_MAX_NODES = 64
_CASES = ((64, 12, 8), (256, 30, 16), (1024, 80, 32), (4608, 200, 18), (4608, 200, 36))
"""Numbers of nodes, of jobs, of nodes per rack."""
_MORE = re.compile(r"at most ([0-9.]+)% more")


def problem(rng: random.Random, case: tuple[int, int, int], share: float, running: float) -> AllocationProblem:
    """A problem of which `share` of the jobs require one rack, and `running` of the jobs have nodes."""
    count, jobs, rack = case
    nodes = tuple(f"n{number:04}" for number in range(count))
    racks = [nodes[first : first + rack] for first in range(0, count, rack)]
    free = {node for node in nodes if rng.random() < 0.9}
    demands = []
    for number in range(jobs):
        requires = rng.random() < share
        largest = min(_MAX_NODES, rack) if requires else _MAX_NODES
        rate, power = rng.uniform(50, 200), rng.uniform(0.6, 0.98)
        held: tuple[str, ...] = ()
        if rng.random() < running:
            choice = [node for node in (rng.choice(racks) if requires else nodes) if node in free]
            held = tuple(rng.sample(choice, min(rng.randint(1, largest), len(choice))))
            free.difference_update(held)
        demands.append(
            JobDemand(
                f"j{number}",
                1,
                largest,
                tuple(ScalingPoint(scale, rate * scale**power) for scale in range(1, largest + 1)),
                rng.uniform(10, 25),
                rng.uniform(5, 15),
                current_nodes=held,
                topology=TopologyPreference.REQUIRE if requires else TopologyPreference.NONE,
                topology_level=int(requires),
            )
        )
    paths = {node: (f"rack{number // rack}",) for number, node in enumerate(nodes)}
    return AllocationProblem(nodes, 120.0, tuple(demands), paths=paths)


def measure(
    case: tuple[int, int, int], share: float, running: float, count: int, process: SolverProcess
) -> dict[str, Any]:
    """Solve some problems of one kind."""
    rng = random.Random(1)
    seconds, cpu_seconds, proven, costs, gaps = list[float](), list[float](), 0, list[float](), list[float]()
    for _ in range(count):
        asked = problem(rng, case, share, running)
        started, cpu_started = time.perf_counter(), time.process_time()
        answer = solve(asked, process=process)
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)
        proven += answer.status == "OPTIMAL"
        anywhere = [replace(job, topology=TopologyPreference.NONE, topology_level=0) for job in asked.jobs]
        costs.append(1 - answer.objective / solve(replace(asked, jobs=tuple(anywhere)), process=process).objective)
        if found := _MORE.search(answer.fallback_reason):
            gaps.append(float(found[1]))
    return {
        "nodes": case[0],
        "jobs": case[1],
        "rack": case[2],
        "require": share,
        "running": running,
        "median_seconds": statistics.median(seconds),
        "longest_seconds": max(seconds),
        "median_cpu_seconds": statistics.median(cpu_seconds),
        "longest_cpu_seconds": max(cpu_seconds),
        "proven": f"{proven}/{count}",
        "cost_percent": 100 * statistics.mean(costs),
        "largest_gap_percent": max(gaps, default=0.0),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    process = SolverProcess()
    try:
        solve(problem(random.Random(0), _CASES[0], 1.0, 0.7), process=process)  # compiles, and starts HiGHS
        for case in _CASES[:2] if options.quick else _CASES:
            for share, running in ((0.3, 0.0), (0.3, 0.7), (1.0, 0.0), (1.0, 0.7)):
                row = measure(case, share, running, 3 if options.quick else 9, process)
                print(
                    json.dumps(row) if options.json else "  ".join(f"{key}={_short(row[key])}" for key in row),
                    flush=True,
                )
    finally:
        process.close()


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
