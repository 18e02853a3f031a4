"""`malletrain solve FILE`: solve an allocation problem, here, without any service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf import json_format

from malletrain.allocator import messages
from malletrain.allocator.objective import rates, scale_values
from malletrain.allocator.problem import DEFAULT_SECONDS, Allocation, AllocationProblem, Formulation
from malletrain.cli.output import JsonOption, print_json, print_table, to_dict
from malletrain.runtime.errors import InvalidInputError
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
    from malletrain.allocator.solving import solve as solve_problem

    problem = messages.problem_from_proto(read_problem(file))
    allocation = solve_problem(problem, formulation, time_limit)
    if as_json:
        print_json(to_dict(messages.allocation_to_proto(allocation)))
    else:
        _print(problem, allocation)


def read_problem(path: Path) -> allocator_pb2.AllocationProblem:
    """Read a problem from a file.

    Raises:
        InvalidInputError: the file can't be read, is no JSON, or has an unknown or ill-typed field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), f"a readable file ({error})") from None
    try:
        if not isinstance(json.loads(text), dict):
            raise InvalidInputError(str(path), "an AllocationProblem as a JSON object")
        return json_format.Parse(text, allocator_pb2.AllocationProblem())
    except json.JSONDecodeError as error:
        raise InvalidInputError(str(path), f"JSON ({error})") from None
    except json_format.ParseError as error:
        raise InvalidInputError(str(path), f"an AllocationProblem ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise InvalidInputError(str(path), "JSON that is not nested without end") from None


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
