"""`malletrain solve FILE`: solve an allocation problem, here, without any service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from malletrain.allocator.problem.allocation_problem import DEFAULT_SECONDS, Allocation, AllocationProblem, Formulation
from malletrain.allocator.problem.objective import rates, scale_values
from malletrain.allocator.wire import messages
from malletrain.cli.shared.message_file import read_message
from malletrain.cli.shared.output import JsonOption, print_json, print_table, to_proto_dict
from malletrain.v1 import allocator_pb2


def solve(
    file: Annotated[Path, typer.Argument(help="AllocationProblem in protobuf-JSON form.")],
    formulation: Annotated[Formulation, typer.Option(help="Which model solves it.")] = Formulation.AUTO,
    time_limit: Annotated[
        float, typer.Option(min=0.001, max=3600, help="Wall-clock limit in seconds.")
    ] = DEFAULT_SECONDS,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Solve an allocation problem: which nodes should each job get?"""
    # The solver takes half a second to load, which no other verb should pay.
    from malletrain.allocator.solvers.solving import solve as solve_problem

    problem = messages.problem_from_proto(read_message(file, allocator_pb2.AllocationProblem()))
    allocation = solve_problem(problem, formulation, time_limit)
    if as_json:
        print_json(to_proto_dict(messages.allocation_to_proto(allocation)))
    else:
        _print(problem, allocation)


def _print(problem: AllocationProblem, allocation: Allocation) -> None:
    rows = []
    for job, entry in zip(problem.jobs, allocation.assignments, strict=True):
        size = len(entry.nodes)
        scales = scale_values(job, problem)
        rows.append(
            (
                job.id,
                f"{len(job.current_nodes)} → {size}",
                f"{rates(job, [size])[0]:,.1f}",
                f"{scales.costs[scales.index(size)]:,.1f}",
                f"{scales.values[scales.index(size)]:,.1f}",
                " ".join(entry.nodes) or "-",
            )
        )
    print_table(("job", "nodes", "samples/s", "rescale cost", "value", "which"), rows)
    used = sum(len(entry.nodes) for entry in allocation.assignments)
    typer.echo(
        f"{allocation.status} by {allocation.solver} in {1000 * allocation.solve_seconds:.2f} ms: "
        f"objective {allocation.objective:,.1f}, {used} of {len(problem.nodes)} nodes used"
    )
    if allocation.fallback_reason:
        typer.echo(f"fell back: {allocation.fallback_reason}")
