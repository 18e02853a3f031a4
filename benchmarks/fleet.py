"""How long planning an ensemble takes: `python benchmarks/fleet.py [--json]`.

Drawn ensembles whose rates spread as those of the 100 networks that FLEET was published with. Goal: a fleet of 100
members is planned in 50 ms or less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate

from malletrain.allocator.fleets.members import FleetMember
from malletrain.allocator.fleets.planning import with_fleets
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.solvers.solving import solve
from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.choose import choose
from malletrain.fleet.flotilla import create_flotilla
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import EnsembleModel, FleetPlanner, FleetProblem
from malletrain.fleet.rates import rate_table
from malletrain.fleet.spec import FleetSpec
from malletrain.model.scaling import ScalingPoint

_REPEATS = 10


def random_ensemble(members: int, gpus: int, rng: random.Random) -> FleetProblem:
    models = []
    for place in range(members):
        rate, scaling = rng.uniform(20.0, 180.0), rng.uniform(0.9, 0.98)
        rates = tuple(rate * count * scaling ** (count - 1) for count in range(1, 9))
        models.append(EnsembleModel(f"m{place}", rates, rng.randint(10, 24)))
    return FleetProblem(tuple(models), gpus, 4, 30_606.0, checkpoint_seconds=34.0)


def plan(problem: FleetProblem) -> None:
    """All of a plan: rates at all counts, the flotilla, and its GPUs."""
    flotilla = create_flotilla(rate_table(problem), range(len(problem.models)), problem.gpus, problem.tolerance)
    assign_gpus(flotilla.gpus, problem.gpus_per_node)


def live_plan(problem: FleetProblem, planner: FleetPlanner) -> None:
    """The Allocator's part in the first plan of a fleet: its curve, the solution, and the GPUs of its members."""
    nodes, epoch = problem.gpus // problem.gpus_per_node, problem.samples_per_epoch
    terms = FleetSpec("", nodes, planner, problem.gpus_per_node, samples_per_epoch=epoch)
    members, curves = [], {}
    for model, samples in zip(problem.models, problem.samples(), strict=True):
        own = FleetMember("f000001", model.id, terms, 0, round(samples))
        members.append(PlannableJob(model.id, 1, problem.gpus, member=own))
        points = tuple(ScalingPoint(count, rate) for count, rate in enumerate(accumulate(model.rates, max), 1))
        curves[model.id] = JobCurve(points, 30.0, 30.0)
    idle = tuple(PlannableNode(f"n{number}", gpus=problem.gpus_per_node) for number in range(nodes))
    options = AllocatorSettings().planner_options
    planning = with_fleets(PlanInput(idle, tuple(members), curves=curves), options.forward, {})
    part = plan_problem(planning.plan_input, options)
    planning.decide(part.allocation([solve(one.rest) for one in part.parts]))


def measure(name: str, work: Callable[[FleetProblem], object], members: int, gpus: int) -> dict[str, object]:
    rng = random.Random(members * 10_007 + gpus)
    seconds = []
    for _ in range(_REPEATS):
        problem = random_ensemble(members, gpus, rng)
        started = time.perf_counter()
        work(problem)
        seconds.append(time.perf_counter() - started)
    return {
        "work": name,
        "members": members,
        "gpus": gpus,
        "median_ms": 1000 * statistics.median(seconds),
        "worst_ms": 1000 * max(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure("plan", plan, members, gpus) for members, gpus in ((10, 40), (100, 80), (100, 160), (1000, 1000))]
    live_plan(random_ensemble(2, 4, random.Random(0)), FleetPlanner.MILP)  # compiles the solver
    rows += [
        measure(f"Allocator, {planner.value}", partial(live_plan, planner=planner), 100, 160)
        for planner in FleetPlanner
    ]
    rows += [measure("lower bound", lower_bound, 100, 160), measure("auto", choose, 100, 160)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
