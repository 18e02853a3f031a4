"""`malletrain fleet simulate FILE`: how long an ensemble trains."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.cli.fleet.ensemble_file import FileArgument, GpusOption, read_ensemble
from malletrain.cli.fleet.messages import run_to_proto
from malletrain.cli.fleet.policies import FleetPolicy, simulate_policy
from malletrain.cli.shared.output import JsonOption, duration, print_json, print_table, to_proto_dict
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import FleetProblem
from malletrain.v1 import fleet_pb2


def simulate(
    file: FileArgument,
    policy: Annotated[
        FleetPolicy | None, typer.Option(help="Who divides the GPUs; default: as in the file, else fleet.")
    ] = None,
    gpus: GpusOption = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Simulate an ensemble: when is each member done, and when all of them?"""
    ensemble = read_ensemble(file, gpus)
    problem, wanted = ensemble.problem, policy or ensemble.planner
    run, choice = simulate_policy(problem, wanted)
    found = run_to_proto(problem, run)
    if choice is not None:
        found.planner, found.reason = choice.planner.value, choice.reason
    if as_json:
        print_json(to_proto_dict(found))
    else:
        _print(problem, wanted, found)


def _print(problem: FleetProblem, policy: FleetPolicy, found: fleet_pb2.FleetRun) -> None:
    if found.flotillas:
        rows = [
            (
                str(number),
                f"{flotilla.start_seconds:,.0f} to {flotilla.end_seconds:,.0f}",
                str(len(flotilla.members)),
                str(sum(len(member.gpu_indices) for member in flotilla.members)),
                " ".join(flotilla.completed) or "-",
            )
            for number, flotilla in enumerate(found.flotillas, 1)
        ]
        print_table(("flotilla", "seconds", "members", "GPUs", "done"), rows)
    else:
        ends = sorted(found.end_seconds.items(), key=lambda item: item[1])
        print_table(("member", "done after, s"), [(name, f"{seconds:,.0f}") for name, seconds in ends])
    bound = lower_bound(problem)
    typer.echo(
        f"{policy.value} trains {len(problem.models)} members on {problem.gpus} GPUs in {found.seconds:,.0f} s "
        f"({duration(found.seconds)}); no schedule is faster than {bound:,.0f} s"
    )
    if found.HasField("reason"):
        typer.echo(f"{found.planner}, because {found.reason}")
