"""`malletrain plan`: shows the newest plan, or an earlier one."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.cli.jobs.naming import decision_in_words
from malletrain.cli.operate.tuning_status import tuning_line
from malletrain.cli.shared.output import JsonOption, ago, print_json, print_table, to_dict
from malletrain.cli.shared.owner_output import plan_weight
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import allocator_pb2

_METRICS = {
    allocator_pb2.OBJECTIVE_METRIC_THROUGHPUT: "throughput",
    allocator_pb2.OBJECTIVE_METRIC_SCALING_EFFICIENCY: "scaling efficiency",
}


def plan(
    generation: Annotated[int, typer.Argument(min=0, metavar="[PLAN]", help="A plan's number; 0: the newest.")] = 0,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Show the newest plan, or an earlier one: why it was made, the nodes of each job, and whether it was applied."""
    with connect() as stubs:
        request = allocator_pb2.GetPlanRequest(generation=generation)
        response = stubs.allocator.GetPlan(request, timeout=DEADLINE_SECONDS)
        tuned = "" if as_json or generation else tuning_line(stubs)
    printed = response.plan if response.HasField("plan") else None
    if as_json:
        print_json(to_dict(printed) if printed else None)
        return
    if printed is None:
        typer.echo("no plan yet: it takes a node or a job")
        return
    outcome = "applied" if printed.applied else f"refused: {printed.refusal}"
    typer.echo(f"plan {printed.generation}, {ago(printed.create_time, time.time())} ago, {outcome}")
    typer.echo(f"because {printed.trigger}")
    if tuned:
        typer.echo(tuned)
    allocation = printed.allocation
    typer.echo(
        f"{allocation.status} by {allocation.solver} in {1000 * allocation.solve_seconds:.2f} ms, "
        f"objective {allocation.objective:,.1f}, pool of {len(printed.problem.nodes)} nodes"
    )
    before = {demand.id: len(demand.current_nodes) for demand in printed.problem.jobs}
    rows = [
        [entry.job_id, f"{before.get(entry.job_id, 0)} → {len(entry.nodes)}", " ".join(entry.nodes) or "-"]
        for entry in allocation.assignments
    ]
    columns = ["job", "scale", "nodes"]
    demands = {demand.id: demand for demand in printed.problem.jobs}
    if any(demand.owner for demand in demands.values()):
        columns[1:1] = ["owner", "weight"]
        for row in rows:
            row[1:1] = [demands[row[0]].owner, plan_weight(demands[row[0]])]
    print_table(columns, rows)
    for decision in printed.fleets:
        typer.echo(f"{decision.fleet_id}: {decision_in_words(decision)}")
    for part in printed.parts:
        if len(printed.parts) > 1 or _has_terms(part):
            typer.echo(part_in_words(part, printed.problem))
    if outside := jobs_without_place(printed):
        typer.echo(f"without a place in their pool: {' '.join(outside)}")
    for job_id, fault in sorted(printed.left_out.items()):
        typer.echo(f"{job_id} was left out, and kept its nodes: its figures are wrong ({fault})")
    if printed.problem.HasField("max_nodes"):
        typer.echo(f"all jobs together may have {printed.problem.max_nodes} nodes")
    for owner, limit in sorted(printed.problem.owner_limits.items()):
        typer.echo(f"{owner} may have {limit} nodes")


def _has_terms(part: allocator_pb2.PlanPart) -> bool:
    """Whether there is more to say of the only pool: how many nodes jobs may have together is told of all jobs."""
    return part.HasField("max_parallel") or part.HasField("max_nodes_per_owner")


def part_in_words(part: allocator_pb2.PlanPart, problem: allocator_pb2.AllocationProblem) -> str:
    """How far ahead a plan looks in a pool, and what else holds there. Pure.

    Args:
        part: The pool's part of the plan.
        problem: The plan's problem, all of which a part is that names no nodes.
    """
    nodes = len(part.nodes or problem.nodes)
    words = [f"{nodes} nodes", f"looks {part.forward_seconds:g} s ahead"]
    if part.objective_metric in _METRICS:
        words.append(f"by {_METRICS[part.objective_metric]}")
    if part.HasField("max_nodes"):
        words.append(f"all jobs together may have {part.max_nodes}")
    if part.HasField("max_nodes_per_owner"):
        words.append(f"those of one owner {part.max_nodes_per_owner}")
    if part.HasField("max_parallel"):
        words.append(f"places for {part.max_parallel} jobs")
    name = part.pool or ("the pool without a name" if part.nodes else "all nodes")
    return f"{name}: {', '.join(words)}"


def jobs_without_place(plan: allocator_pb2.Plan) -> list[str]:
    """Jobs that take part in no pool's plan, since pools have places for so many only. Pure."""
    if not any(part.HasField("max_parallel") for part in plan.parts):
        return []
    # A part that names no nodes is of the whole problem.
    if any(not part.nodes and not part.job_ids for part in plan.parts):
        return []
    placed = {job_id for part in plan.parts for job_id in part.job_ids}
    return [demand.id for demand in plan.problem.jobs if demand.id not in placed]
