"""BFTrainer's exhibits that need no replay: Table 1, Fig. 1 and Fig. 6 on the trace, and Fig. 5 on solve times."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, Formulation
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.reproduce.bftrainer.experiments import SHORT_FRAGMENTS, TABLE_1
from malletrain.reproduce.exhibits import Cell, Exhibit, round_cells
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.records import HOUR_S, idle_node_hours, slices_of
from malletrain.simulator.report.axes import Axis, Kind, TimeAxis
from malletrain.simulator.report.plots import bars, lines, time_bars
from malletrain.simulator.traces.describe import SHORT_S, Description, describe

_NODES = (25, 50, 100, 200, 400, 800)
_JOBS = (5, 10, 20, 30)
_REPEATS = 3
_LIMIT_S = 20.0
_NODE_LIMIT_S = 5.0
"""Of the paper's model on nodes."""
_FORMULATIONS = (Formulation.DP, Formulation.COUNTS)
_MAX_NODE_LEVEL_JOBS = 10
"""With more jobs the model on nodes is not tried: with these it reaches the limit at a hundred nodes or so."""


def solve_exhibit(jobs: Sequence[ReplayJob], rng: random.Random) -> Exhibit:
    """Solve times of both production solvers and of the paper's model, with random present nodes; they differ by run.

    Where the median of the paper's model on nodes is beyond the limit, larger pools are not tried.
    """
    rows: list[tuple[Cell, ...]] = []
    process = SolverProcess()
    try:
        for count in _JOBS:
            tried = count <= _MAX_NODE_LEVEL_JOBS
            for nodes in _NODES:
                problems = [_problem(jobs, count, nodes, rng) for _ in range(_REPEATS)]
                ours = [_median_ms(problems, formulation, process) for formulation in _FORMULATIONS]
                paper = _median_ms(problems, Formulation.NODES, process, _NODE_LIMIT_S) if tried else None
                tried = paper is not None and paper < 1000.0 * _NODE_LIMIT_S
                rows.append((count, nodes, *ours, paper))
    finally:
        process.close()
    return Exhibit(
        "figure-5",
        "Fig. 5: time to solve by number of jobs and nodes",
        ("jobs", "nodes", "dp, ms", "HiGHS on counts, ms", "HiGHS on the paper's model, ms"),
        round_cells(rows, 3),
        "Published: typically less than a second, with Gurobi on the node-level model. The same model with HiGHS is "
        f"tried with up to {_MAX_NODE_LEVEL_JOBS} jobs, each solve up to the limit of {_NODE_LIMIT_S:g} s, and not on "
        "larger pools than the first whose median reaches it. Where only the pool constrains, counts decide, "
        "and a decision takes milliseconds.",
        lines("Fig. 5: time to solve", "nodes", Axis("ms", log=True), _series(rows)),
        measured=True,
    )


def _series(rows: Sequence[tuple[Cell, ...]]) -> dict[str, tuple[list[float], list[float]]]:
    """All on one axis, with the limit."""
    lines = ((_JOBS[0], 2, "dp"), (_JOBS[-1], 2, "dp"), (_JOBS[0], 3, "HiGHS"), (_JOBS[-1], 3, "HiGHS"))
    paper = tuple((count, 4, "paper's model") for count in _JOBS if count <= _MAX_NODE_LEVEL_JOBS)
    series: dict[str, tuple[list[float], list[float]]] = {}
    for count, place, label in (*lines, *paper):
        known = [
            (float(row[1] or 0), float(row[place] or 0)) for row in rows if row[0] == count and row[place] is not None
        ]
        series[f"{count} jobs, {label}"] = ([nodes for nodes, _ in known], [ms for _, ms in known])
    limit = 1000.0 * _NODE_LIMIT_S
    return {**series, f"limit of {_NODE_LIMIT_S:g} s": ([float(_NODES[0]), float(_NODES[-1])], [limit, limit])}


def _median_ms(
    problems: Sequence[AllocationProblem], formulation: Formulation, process: SolverProcess, limit_s: float = _LIMIT_S
) -> float:
    answers = [solve(problem, formulation, limit_s, process) for problem in problems]
    in_time = [answer.status == "OPTIMAL" and not answer.fallback_reason for answer in answers]
    seconds = [answer.solve_seconds if ok else limit_s for answer, ok in zip(answers, in_time, strict=True)]
    return 1000.0 * statistics.median(seconds)


def _problem(jobs: Sequence[ReplayJob], count: int, nodes: int, rng: random.Random) -> AllocationProblem:
    names = tuple(f"n{index}" for index in range(nodes))
    free = list(names)
    demands = []
    for index in range(count):
        job = jobs[index % len(jobs)]
        share = rng.randint(0, max(1, 2 * nodes // count))
        held = tuple(free.pop() for _ in range(min(len(free), share, job.max_nodes)))
        demands.append(replace(job.demand(), id=f"j{index}", current_nodes=held))
    return AllocationProblem(names, 120.0, tuple(demands), CostModel.PAPER)


def trace_exhibits(whole: Trace, scenario: Scenario) -> list[Exhibit]:
    """Table 1 and Fig. 1 of the whole trace, Fig. 6 of the nodes that are replayed."""
    description = describe(whole)
    return [_table_1(description), _figure_1(whole, description), _figure_6(whole.origin, scenario)]


def _table_1(ours: Description) -> Exhibit:
    rows = [("this trace", ours.inc_per_hour, ours.dec_per_hour, ours.idle_ratio, ours.equivalent_nodes)]
    rows += [(system, *figures) for system, figures in TABLE_1.items()]
    return Exhibit(
        "table-1",
        "Table 1: resources that cannot be backfilled",
        ("system", "INC/h", "DEC/h", "ratio", "eq-nodes"),
        round_cells(rows),
        f"This trace has {ours.nodes:,} nodes and {ours.duration_s / HOUR_S:,.0f} hours, with {ours.events:,} events. "
        "The ratio counts all nodes that the log names, some of which are no compute nodes.",
        bars(
            "Idle share of all node-hours",
            Axis(kind=Kind.SHARE, zero=True),
            [str(row[0]) for row in rows],
            {"idle share": [ours.idle_ratio, *(None for _ in TABLE_1)]},
            published={"idle share": [None, *(figures[2] for figures in TABLE_1.values())]},
        ),
    )


def _figure_1(trace: Trace, ours: Description) -> Exhibit:
    lengths = np.sort([fragment.length_s for fragment in trace.fragments])
    points = np.unique(np.geomspace(10.0, max(20.0, float(lengths[-1])), 60).round())
    below = np.searchsorted(lengths, points, side="left")
    by_number = below / len(lengths)
    by_time = np.concatenate(([0.0], np.cumsum(lengths)))[below] / lengths.sum()
    places = points.tolist()
    figure = lines(
        "Fig. 1: share that is shorter",
        Axis("length of a fragment", Kind.SECONDS, log=True),
        Axis(kind=Kind.SHARE, zero=True),
        {"of the fragments": (places, by_number.tolist()), "of the idle node-time": (places, by_time.tolist())},
        published={
            label: ([SHORT_S], [value])
            for label, value in zip(("of the fragments", "of the idle node-time"), SHORT_FRAGMENTS, strict=True)
        },
    )
    return Exhibit(
        "figure-1",
        "Fig. 1: cumulative distribution of fragment length",
        ("shorter than, s", "share of fragments", "share of node-time"),
        round_cells(list(zip(points.tolist(), by_number.tolist(), by_time.tolist(), strict=True))),
        f"Under ten minutes: {ours.short_fragments:.1%} of the fragments with {ours.short_node_time:.1%} of the "
        f"node-time (published, two weeks: {SHORT_FRAGMENTS[0]:.0%} and {SHORT_FRAGMENTS[1]:.0%}).",
        figure,
    )


def _figure_6(origin: str | None, scenario: Scenario) -> Exhibit:
    slices = slices_of(scenario.duration_s)
    edges = slices.edges
    times = np.asarray([event.time_s for event in scenario.events])
    counts = np.histogram(times, bins=edges)[0]
    offered = idle_node_hours(scenario.events, edges)
    hours = slices.lengths / HOUR_S
    share = offered / hours / len(scenario.nodes)
    rows = list(zip((edges[:-1] / HOUR_S).tolist(), offered / hours, share, counts.tolist(), strict=True))
    figure = time_bars(
        f"Fig. 6: mean idle nodes, {slices.words}",
        TimeAxis.of(origin, scenario.duration_s),
        "nodes",
        edges,
        {"mean idle nodes": (offered / hours).tolist()},
    )
    return Exhibit(
        "figure-6",
        "Fig. 6: idle nodes over the week",
        ("hour", "mean idle nodes", "share of nodes", "events"),
        round_cells([tuple(float(cell) if not isinstance(cell, int) else cell for cell in row) for row in rows]),
        "The paper plots an arbitrarily chosen set of 1024 nodes; ours are the first ones of the log.",
        figure,
    )
