"""Times of selections and of simulations with them: `python benchmarks/selection.py [--json]`.

All is measured in one run, so that ratios compare on a busy machine, too. Windows hold generated jobs of Theta-S4, and
there is room for a share of what they ask for.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from malletrain.selection.generations import GeneticParameters
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import FreeResources, MachineResources, SelectionProblem
from malletrain.selection.select import SelectionSettings, SelectionSolver, select
from malletrain.simulator.batch.engine import simulate
from malletrain.simulator.batch.generated import PROFILES, WorkloadRecipe, derive, generate
from malletrain.simulator.batch.policies import WindowSettings, policy_named
from malletrain.simulator.batch.running import schedule_of

_THETA = PROFILES["theta"]
_REPEATS = 20


def window(size: int, room: float, rng: random.Random) -> SelectionProblem:
    workload = derive(generate(_THETA, 400, 0.8, rng.randint(0, 10**6)), WorkloadRecipe.S4, 0)
    jobs = tuple(job.request for job in rng.sample(workload.jobs, size))
    nodes = min(_THETA.nodes, int(room * sum(job.nodes for job in jobs)))
    burst_buffer = min(_THETA.burst_buffer_gb, int(room * sum(job.burst_buffer_gb for job in jobs)))
    return SelectionProblem(
        MachineResources(_THETA.nodes, _THETA.burst_buffer_gb), FreeResources(nodes, 0, burst_buffer), jobs
    )


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def selections() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    genetic = SelectionSettings(solver=SelectionSolver.GENETIC, genetic=GeneticParameters(20, 500))
    for size, room in ((10, 0.5), (14, 0.3), (20, 0.1), (20, 0.25), (20, 0.5), (20, 1.0), (50, 0.05)):
        rng = random.Random(size)
        problems = [window(size, room, rng) for _ in range(_REPEATS)]
        answers = [select(problem, SelectionSettings()) for problem in problems]
        exact = [seconds(lambda problem=problem: select(problem, SelectionSettings())) for problem in problems]
        other = [seconds(lambda problem=problem: select(problem, genetic)) for problem in problems]
        same = [one.chosen == select(problem, genetic).chosen for one, problem in zip(answers, problems, strict=True)]
        rows.append(
            {
                "window": size,
                "room": room,
                "too_long_for_exact": sum(answer.genetic for answer in answers),
                "genetic_chooses_the_same": fmean(same),
                "exact_ms": 1000 * fmean(exact),
                "exact_worst_ms": 1000 * max(exact),
                "genetic_ms": 1000 * fmean(other),
                "genetic_worst_ms": 1000 * max(other),
            }
        )
    return rows


def simulations(jobs: int) -> list[dict[str, object]]:
    workload = derive(generate(_THETA, jobs, 0.8, 1), WorkloadRecipe.S4, 1)
    plain = replace(workload, jobs=tuple(replace(job, burst_buffer_gb=0) for job in workload.jobs), resources=None)
    wfp = policy_named("wfp")
    nodes_only_s = seconds(lambda: simulate(plain, wfp))
    rows: list[dict[str, object]] = [{"jobs": jobs, "method": "wfp, nodes only", "seconds": nodes_only_s, "ratio": 1.0}]
    for method in (None, *(method for method in SelectionMethod if method is not SelectionMethod.CONSTRAINED_SSD)):
        settings = WindowSettings(method and SelectionSettings(method))
        began = time.perf_counter()
        counts = schedule_of(workload, wfp, settings, clock=time.perf_counter)[1]
        took_s = time.perf_counter() - began
        times = counts.solve_s
        rows.append(
            {
                "jobs": jobs,
                "method": "baseline" if method is None else method.value,
                "seconds": took_s,
                "ratio": took_s / nodes_only_s,
                "mean_solve_ms": 1000 * fmean(times) if times else 0.0,
                "worst_solve_ms": 1000 * max(times, default=0.0),
                "genetic_answers": counts.genetic_answers,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=2000)
    arguments = parser.parse_args()
    found = {"selections": selections(), "simulations": simulations(arguments.jobs)}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for rows in found.values():
        for row in rows:
            print(
                "  ".join(
                    f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                    for name, value in row.items()
                )
            )


if __name__ == "__main__":
    main()
