"""A made-up day of a large machine, as the dashboard knows it: for benchmarks/dashboard.py."""

from __future__ import annotations

import itertools
import random

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.allocator.wire.messages import problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.observer.facts import NodeFact, PlanFact, ReleaseFact, RowOfPlan, StallFact
from malletrain.observer.history import History, Minute, NodePeriod
from malletrain.observer.job_facts import CurveFact, JobFact, PointFact, ProgressFact

NODES, FRAGMENTS, JOBS, DAY_S = 1024, 7000, 100, 86400.0
_PLANS, _STALLS, _RELEASES = 200, 20, 2000
_SCALES = (1, 2, 4, 8, 16, 32)


def day(now: float) -> History:
    """A made-up day that ends now."""
    chance = random.Random(1)
    names = [f"n{number:04d}" for number in range(NODES)]
    held: dict[str, set[str]] = {f"j{number:06d}": set() for number in range(JOBS)}
    ended, lasting = [], []
    for place, name in enumerate(names):
        job_id = f"j{place % JOBS:06d}"
        held[job_id].add(name)
        share = (FRAGMENTS - NODES) // NODES + (place < (FRAGMENTS - NODES) % NODES)
        times = sorted(now - DAY_S * chance.random() for _ in range(share + 1))
        for start, end in itertools.pairwise(times):
            ended.append(NodePeriod(name, chance.choice(("", f"j{chance.randrange(JOBS):06d}")), start, end))
        lasting.append(NodePeriod(name, job_id, times[-1]))
    fragments = (*ended, *lasting)
    jobs = {
        job_id: JobFact(
            job_id,
            job_id,
            "ada",
            "RUNNING",
            admitted=True,
            max_nodes=32,
            commanded=frozenset(nodes),
            confirmed=frozenset(nodes),
        )
        for job_id, nodes in held.items()
    }
    curves = {job_id: _curve(job_id, 5.0 + chance.random()) for job_id in held}
    stalls = {
        job_id: tuple(
            StallFact(job_id, 8, 10, 10.0 * chance.random(), now - DAY_S * (_STALLS - place) / _STALLS)
            for place in range(_STALLS)
        )
        for job_id in held
    }
    times = sorted(now - DAY_S * chance.random() for _ in range(_RELEASES))
    releases = tuple(ReleaseFact(time, f"j{chance.randrange(JOBS):06d}", chance.random()) for time in times)
    first = now - DAY_S - (now - DAY_S) % 60.0
    minutes = tuple(Minute(first + 60.0 * place, (50_000.0, 5000.0, 2000.0, 0.0, 4440.0)) for place in range(1440))
    utilization = tuple(MinuteUse(minute.start, 1024.0, 6e5, 6.5e5, 7e5) for minute in minutes)
    return History(
        began=now - DAY_S,
        now=now,
        nodes={name: NodeFact(name, now - 3600.0, 600.0) for name in names},
        jobs=jobs,
        curves=curves,
        stalls=stalls,
        plans=tuple(_plan(number + 1, now - 60.0 * (_PLANS - number), names, held, curves) for number in range(_PLANS)),
        releases=releases,
        heard_jobs=True,
        progress={job_id: ProgressFact(job_id, 1000, 0, 100.0, len(nodes)) for job_id, nodes in held.items()},
        fragments=fragments,
        open={fragment.node: len(ended) + place for place, fragment in enumerate(lasting)},
        minutes=minutes,
        utilization=utilization,
        counts=(NODES, 0, 0, 0, 0),
    )


def _curve(job_id: str, rate: float) -> CurveFact:
    points = tuple(PointFact(nodes, rate * nodes**0.9, "measured", 0.02, 100) for nodes in _SCALES)
    return CurveFact(job_id, points, 10.0, 5.0, "amdahl", tuple((point.nodes, point.rate) for point in points))


def _plan(
    number: int, time: float, names: list[str], held: dict[str, set[str]], curves: dict[str, CurveFact]
) -> PlanFact:
    """A plan that leaves all as it is; the problem of the newest ones is kept whole."""
    demands = tuple(
        JobDemand(
            job_id,
            1,
            32,
            tuple(ScalingPoint(point.nodes, point.rate) for point in curves[job_id].points),
            10.0,
            5.0,
            current_nodes=tuple(sorted(nodes)),
        )
        for job_id, nodes in held.items()
    )
    problem = AllocationProblem(tuple(names), 120.0, demands)
    rows = tuple(RowOfPlan(job_id, len(nodes), len(nodes)) for job_id, nodes in held.items())
    message = problem_to_proto(problem).SerializeToString() if number > _PLANS - 5 else b""
    return PlanFact(
        number, time, "nodes joined: 2", len(names), 120.0, 1e6, "OPTIMAL", "dp", 0.01, rows=rows, problem=message
    )
