"""What it is worth that jobs prefer nodes near each other: `python benchmarks/topology.py [--json] [--quick]`.

A generated machine of three levels (rows, racks, chassis) whose idle nodes come and go, node by node and rack by rack,
and elastic jobs that come and end. The same sequence of changes is planned twice: no job has a preference, and a share
of the jobs prefers nodes near each other. Each plan of the second run is also made without regard to the preferences,
which must give the same numbers of nodes. Then the time of single plans of a large machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import GroupPath, NodeTree, TopologyPreference

_SCALES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Shape:
    """Numbers of rows, of racks per row, of chassis per rack, of nodes per chassis."""

    rows: int
    racks: int
    chassis: int
    nodes: int

    def paths(self) -> dict[str, GroupPath]:
        return {
            f"r{row}k{rack}c{chassis}n{node}": (f"row{row}", f"rack{rack}", f"chassis{chassis}")
            for row in range(self.rows)
            for rack in range(self.racks)
            for chassis in range(self.chassis)
            for node in range(self.nodes)
        }

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Nodes of a row, a rack and a chassis."""
        return self.racks * self.chassis * self.nodes, self.chassis * self.nodes, self.nodes


@dataclass
class Outcome:
    """What a run has measured."""

    spans: list[list[float]] = field(default_factory=lambda: [[], [], []])
    ideals: list[list[float]] = field(default_factory=lambda: [[], [], []])
    objectives: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    blind_milliseconds: list[float] = field(default_factory=list)
    other_counts: int = 0


def new_job(name: str, rng: random.Random, prefers: bool) -> JobDemand:
    rate, points = rng.uniform(1000, 7000), []
    for scale in _SCALES:
        points.append(ScalingPoint(scale, rate))
        rate *= rng.uniform(1.55, 2.05)
    return JobDemand(
        name,
        1,
        rng.choice([4, 8, 16, 32]),
        tuple(points),
        rng.uniform(10, 25),
        rng.uniform(5, 15),
        topology=TopologyPreference.PREFER if prefers else TopologyPreference.NONE,
    )


def changes(shape: Shape, steps: int, jobs: int, share: float, seed: int) -> list[AllocationProblem]:
    """Idle nodes and jobs after each change, without what jobs hold: the same for every run."""
    rng = random.Random(seed)
    paths = shape.paths()
    idle = {name for name in paths if rng.random() < 0.5}
    running, number, found = list[JobDemand](), 0, []
    for _ in range(steps):
        while len(running) < jobs:
            running.append(new_job(f"j{number}", rng, rng.random() < share))
            number += 1
        stays = {name: rng.uniform(60, 3600) for name in paths}
        nodes = tuple(name for name in paths if name in idle)
        found.append(AllocationProblem(nodes, 120.0, tuple(running), expected_stay_seconds=stays, paths=paths))
        if rng.random() < 0.2:  # a large main job begins or ends in a rack
            rack = rng.choice(list(paths.values()))[:2]
            whole = {name for name, path in paths.items() if path[:2] == rack}
            idle = idle - whole if rng.random() < 0.5 else idle | whole
        for _ in range(rng.randint(1, 12)):
            idle ^= {rng.choice(list(paths))}
        if rng.random() < 0.3:
            running.pop(rng.randrange(len(running)))
    return found


def follow(shape: Shape, sequence: Sequence[AllocationProblem], *, heeded: bool) -> Outcome:
    """Plan every change; jobs keep the nodes of the plan before, as far as these are still idle."""
    outcome, held = Outcome(), dict[str, tuple[str, ...]]()
    for state in sequence:
        idle, prefers = frozenset(state.nodes), [job.topology is TopologyPreference.PREFER for job in state.jobs]
        jobs = tuple(
            replace(job, current_nodes=tuple(name for name in held.get(job.id, ()) if name in idle))
            for job in state.jobs
        )
        problem = replace(state, jobs=jobs)
        blind = replace(problem, paths={}, jobs=tuple(replace(job, topology=TopologyPreference.NONE) for job in jobs))
        begin = time.perf_counter()
        plain = solve(blind)
        outcome.blind_milliseconds.append(1000 * (time.perf_counter() - begin))
        plan = plain
        if heeded:
            begin = time.perf_counter()
            plan = solve(problem)
            outcome.milliseconds.append(1000 * (time.perf_counter() - begin))
            same = [len(a.nodes) == len(b.nodes) for a, b in zip(plan.assignments, plain.assignments, strict=True)]
            outcome.other_counts += not all(same)
        outcome.objectives.append(plan.objective)
        held = {entry.job_id: entry.nodes for entry in plan.assignments}
        tree = NodeTree.of(state.nodes, state.paths)
        for entry, prefer in zip(plan.assignments, prefers, strict=True):
            if prefer and len(entry.nodes) > 1:
                for level, (count, size) in enumerate(zip(tree.spans(entry.nodes), shape.sizes, strict=True)):
                    outcome.spans[level].append(count)
                    outcome.ideals[level].append(math.ceil(len(entry.nodes) / size))
    return outcome


def large_plan(jobs: int, shape: Shape, share: float, repeats: int) -> float:
    """Median time of a plan of a large machine in ms; a share of the jobs has a preference."""
    found = []
    for repeat in range(repeats):
        rng = random.Random(repeat)
        paths = shape.paths()
        free = list(paths)
        rng.shuffle(free)
        demands = []
        for index in range(jobs):
            job = new_job(f"j{index}", rng, rng.random() < share)
            held = tuple(free.pop() for _ in range(min(len(free) // 2, rng.randint(0, len(paths) // jobs))))
            demands.append(replace(job, current_nodes=held))
        problem = AllocationProblem(tuple(paths), 120.0, tuple(demands), paths=paths if share else {})
        begin = time.perf_counter()
        solve(problem)
        found.append(1000 * (time.perf_counter() - begin))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the changes")
    arguments = parser.parse_args()
    shape, steps = Shape(4, 8, 4, 4), 40 if arguments.quick else 400
    rows: list[dict[str, Any]] = []
    for jobs, share in ((10, 0.5), (10, 1.0), (40, 0.5), (40, 1.0)):
        sequence = changes(shape, steps, jobs, share, seed=int(100 * share))
        before, after = follow(shape, sequence, heeded=False), follow(shape, sequence, heeded=True)
        rows.append(
            {
                "jobs": jobs,
                "share": share,
                "rows": [statistics.mean(outcome.spans[0]) for outcome in (before, after)],
                "racks": [statistics.mean(outcome.spans[1]) for outcome in (before, after)],
                "chassis": [statistics.mean(outcome.spans[2]) for outcome in (before, after)],
                "ideal": [statistics.mean(after.ideals[level]) for level in range(3)],
                "plans_with_other_counts": after.other_counts,
                "objective_ratio": sum(after.objectives) / sum(before.objectives),
                "plan_ms": [statistics.median(after.blind_milliseconds), statistics.median(after.milliseconds)],
            }
        )
    large = Shape(5, 10, 10, 4)
    times = {share: large_plan(500, large, share, 3 if arguments.quick else 15) for share in (0.0, 0.0, 0.25, 0.5, 1.0)}
    if arguments.json:
        print(json.dumps({"sequences": rows, "large_plan_ms": times}, indent=2))
        return
    print(f"{steps} changes, 512 nodes in {shape.rows} rows of {shape.racks} racks of {shape.chassis} chassis")
    for row in rows:
        text = ", ".join(
            f"{level} {row[level][0]:.2f} to {row[level][1]:.2f}" for level in ("rows", "racks", "chassis")
        )
        print(
            f"{row['jobs']} jobs, {row['share']:.0%} prefer: {text} (ideal {row['ideal'][1]:.2f} racks), objective x "
            f"{row['objective_ratio']:.4f}, {row['plans_with_other_counts']} plans with other counts, plan "
            f"{row['plan_ms'][0]:.1f} to {row['plan_ms'][1]:.1f} ms"
        )
    print("500 jobs, 2,000 nodes: " + ", ".join(f"{share:.0%} prefer: {ms:.1f} ms" for share, ms in times.items()))


if __name__ == "__main__":
    main()
