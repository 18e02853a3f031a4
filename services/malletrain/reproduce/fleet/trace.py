"""The published ensemble on the idle nodes of a trace, by every planner."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.reproduce.exhibits import Cell, Exhibit, rounded
from malletrain.reproduce.fleet.published import GPUS_PER_NODE
from malletrain.reproduce.fleet.trials import published_problem
from malletrain.simulator.fleet.dividing import STALL_S, ByRemainingWork, GpuDivider, InFlotillas, OneEach
from malletrain.simulator.fleet.idle_nodes import COMMIT_S, IdleNodesRun, train_on_idle_nodes
from malletrain.simulator.fleet.whole_nodes import member_jobs
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.node_events import NodeEvent, resource_integral
from malletrain.simulator.replay.options import ReplayOptions


def trace_exhibit(scenario: Scenario) -> Exhibit:
    """Train the published ensemble on a trace's idle nodes, each with as many GPUs as in the paper."""
    problem = published_problem(GPUS_PER_NODE * most_idle(scenario.events))
    table = rate_table(problem)
    dividers: dict[str, GpuDivider] = {
        "fleet": InFlotillas(problem, table),
        "makespan": ByRemainingWork(table),
        "list": OneEach(table),
    }
    runs = {
        name: train_on_idle_nodes(problem, table, divider, scenario.events, scenario.duration_s)
        for name, divider in dividers.items()
    }
    runs["milp"] = by_allocator(problem, table, scenario)
    rows: list[tuple[Cell, ...]] = [
        (name, run.seconds, run.done, 100 * run.utilisation, run.preemption_samples, run.rescale_samples)
        for name, run in runs.items()
    ]
    return Exhibit(
        "trace",
        "The same ensemble on the idle nodes of a trace",
        ("planner", "time to train, s", "networks done", "utilisation, %", "samples lost to leaves", "to rescaling"),
        rounded(rows),
        f"Ours alone; {len(scenario.nodes)} nodes of {GPUS_PER_NODE} GPUs, of which at most "
        f"{most_idle(scenario.events)} are idle at once. A change of a member's GPUs stalls it for {STALL_S:.0f} s, "
        "and all its flotilla where they go at one pace; a node that leaves takes what was done since the last commit "
        f"({COMMIT_S:.0f} s). Planners know epochs and rates; preprocessing is no limit. Utilisation: the samples that "
        "count, each as long as one GPU takes for it, over the GPU-seconds offered until all are done. The allocator "
        "(milp) gives whole nodes to independent members.",
    )


def most_idle(events: Sequence[NodeEvent]) -> int:
    """Most nodes that are idle at once."""
    idle = most = 0
    for event in events:
        idle += len(event.joined) - len(event.left)
        most = max(most, idle)
    return most


def by_allocator(problem: FleetProblem, table: RateTable, scenario: Scenario) -> IdleNodesRun:
    """Members as independent jobs of a replay, which the production allocator gives whole nodes."""
    jobs = member_jobs(problem)
    options = ReplayOptions(duration_s=scenario.duration_s, max_parallel=len(jobs), commit_s=COMMIT_S)
    records = run_replay(scenario.events, scenario.nodes, jobs, options).jobs
    ends = [record.ended_s for record in records if record.ended_s is not None]
    seconds = max(ends) if len(ends) == len(jobs) else None
    until_s = scenario.duration_s if seconds is None else seconds
    events = [event for event in scenario.events if event.time_s < until_s]
    offered = 3600.0 * resource_integral(events, until_s) * problem.gpus_per_node
    places = {job.id: place for place, job in enumerate(jobs)}
    trained = sum(record.samples / table.rate(places[record.job], 1) for record in records)
    return IdleNodesRun(
        seconds,
        len(ends),
        trained / offered,
        sum(record.preemption_samples for record in records),
        sum(record.rescale_samples for record in records),
    )
