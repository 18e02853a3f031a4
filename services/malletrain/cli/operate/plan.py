"""`malletrain plan`: shows the newest plan, or an earlier one."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.cli.jobs.fleet_jobs import decision_in_words
from malletrain.cli.operate.tuning_status import tuning_line
from malletrain.cli.shared.output import JsonOption, ago, print_json, print_table, to_dict
from malletrain.cli.shared.owner_output import plan_weight
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import allocator_pb2


def plan(
    generation: Annotated[int, typer.Argument(min=0, metavar="[PLAN]", help="A plan's number; 0: the newest.")] = 0,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Show the newest plan, or an earlier one: why it was made, the nodes of each job, and whether it was applied."""
    with connect() as stubs:
        request = allocator_pb2.GetPlanRequest(generation=generation)
        response = stubs.allocator.GetPlan(request, timeout=DEADLINE_SECONDS)
        tuned = "" if as_json or generation else tuning_line(stubs)
    found = response.plan if response.HasField("plan") else None
    if as_json:
        print_json(to_dict(found) if found else None)
        return
    if found is None:
        typer.echo("no plan yet: it takes a node or a job")
        return
    outcome = "applied" if found.applied else f"refused: {found.refusal}"
    typer.echo(f"plan {found.generation}, {ago(found.create_time, time.time())} ago, {outcome}")
    typer.echo(f"because {found.trigger}")
    if tuned:
        typer.echo(tuned)
    allocation = found.allocation
    typer.echo(
        f"{allocation.status} by {allocation.solver} in {1000 * allocation.solve_seconds:.2f} ms, "
        f"objective {allocation.objective:,.1f}, pool of {len(found.problem.nodes)} nodes"
    )
    before = {demand.id: len(demand.current_nodes) for demand in found.problem.jobs}
    rows = [
        [entry.job_id, f"{before.get(entry.job_id, 0)} → {len(entry.nodes)}", " ".join(entry.nodes) or "-"]
        for entry in allocation.assignments
    ]
    columns = ["job", "scale", "nodes"]
    demands = {demand.id: demand for demand in found.problem.jobs}
    if any(demand.owner for demand in demands.values()):
        columns[1:1] = ["owner", "weight"]
        for row in rows:
            row[1:1] = [demands[row[0]].owner, plan_weight(demands[row[0]])]
    print_table(columns, rows)
    for decision in found.fleets:
        typer.echo(f"{decision.fleet_id}: {decision_in_words(decision)}")
    for part in found.parts if len(found.parts) > 1 else ():
        typer.echo(_part_in_words(part))
    if found.problem.HasField("max_nodes"):
        typer.echo(f"all jobs together may have {found.problem.max_nodes} nodes")
    for owner, limit in sorted(found.problem.owner_limits.items()):
        typer.echo(f"{owner} may have {limit} nodes")


def _part_in_words(part: allocator_pb2.PlanPart) -> str:
    """How far ahead the plan looks in a pool, and what else holds there."""
    metric = {
        allocator_pb2.OBJECTIVE_METRIC_THROUGHPUT: ", by throughput",
        allocator_pb2.OBJECTIVE_METRIC_SCALING_EFFICIENCY: ", by scaling efficiency",
    }.get(part.objective_metric, "")
    limit = f", all jobs together may have {part.max_nodes}" if part.HasField("max_nodes") else ""
    name = part.pool or "the pool without a name"
    return f"{name}: {len(part.nodes)} nodes, looks {part.forward_seconds:g} s ahead{metric}{limit}"
