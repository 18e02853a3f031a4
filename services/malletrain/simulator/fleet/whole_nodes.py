"""Members of an ensemble as independent jobs: what the allocator makes of them, which divides whole nodes."""

from __future__ import annotations

from malletrain.fleet.baselines import sequential
from malletrain.fleet.lifecycle import FleetRun
from malletrain.fleet.makespan import Replanning
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import rate_table
from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import ReplayOptions


def member_jobs(problem: FleetProblem) -> tuple[ReplayJob, ...]:
    """The members as jobs: curves by whole nodes, up to the nodes on which each is fastest."""
    table, per_node = rate_table(problem), min(problem.gpus_per_node, problem.gpus)
    stall_s = Replanning().stall_s
    jobs = []
    for member, (model, samples) in enumerate(zip(problem.models, problem.samples(), strict=True)):
        rates = [table.rate(member, nodes * per_node) for nodes in range(1, problem.gpus // per_node + 1)]
        most = rates.index(max(rates)) + 1
        curve = tuple(ScalingPoint(nodes, rate) for nodes, rate in enumerate(rates[:most], 1))
        jobs.append(ReplayJob(model.id, model.id, 0.0, stall_s, stall_s, 1, most, samples, curve))
    return tuple(jobs)


def whole_nodes(problem: FleetProblem) -> FleetRun:
    """Train the members as independent jobs. A node that is smaller than the others is not used."""
    jobs = member_jobs(problem)
    count = problem.gpus // min(problem.gpus_per_node, problem.gpus)
    names = tuple(f"n{number}" for number in range(count))
    event = NodeEvent(0.0, tuple((name, 0.0) for name in names), ())
    # Long enough for any plan: each on one node, one after the other, with a stall at each start and end of another.
    slowest = sum(job.samples / job.curve[0].rate for job in jobs)
    max_s = 2 * (slowest + sequential(problem).seconds) + len(jobs) ** 2 * 2 * Replanning().stall_s
    options = ReplayOptions(duration_s=max_s, max_parallel=len(jobs))
    ended = {record.job: record.ended_s for record in run_replay([event], names, jobs, options).jobs}
    ends = tuple(float(ended[job.id] or max_s) for job in jobs)
    return FleetRun(max(ends), ends)
