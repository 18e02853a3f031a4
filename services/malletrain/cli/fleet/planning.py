"""`malletrain fleet plan FILE|ID`: which members train first, or now, and on which GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.fleet.ensemble_file import GpusOption, read_ensemble
from malletrain.cli.fleet.live import show_plan
from malletrain.cli.fleet.messages import plan_to_proto
from malletrain.cli.fleet.policies import FleetPolicy
from malletrain.cli.jobs.fleet_jobs import is_fleet
from malletrain.cli.shared.output import JsonOption, print_json, print_table, to_proto_dict
from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.baselines import longest_first
from malletrain.fleet.choose import SIMULATED, choose
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.problem import FleetPlanner, FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.fleet.remaining_work import replanned
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import fleet_pb2

_PLANNED = (FleetPolicy.AUTO, *(FleetPolicy(planner.value) for planner in SIMULATED))


def plan(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|ID",
            help="The ensemble: a FleetProblem in protobuf-JSON form, or NAME.toml; or a fleet that was submitted.",
        ),
    ],
    policy: Annotated[
        FleetPolicy | None,
        typer.Option(help="auto, fleet, makespan or list; default: as in the file, else fleet."),
    ] = None,
    gpus: GpusOption = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Plan an ensemble: which members train first, and on which GPUs? Or show the newest plan of a fleet."""
    if is_fleet(str(file)) and not file.exists():
        if policy or gpus:
            raise InvalidInputError("FILE", "a file with --policy or --gpus", str(file))
        show_plan(str(file), as_json=as_json)
        return
    ensemble = read_ensemble(file, gpus)
    problem, wanted = ensemble.problem, policy or ensemble.planner
    if wanted not in _PLANNED:
        raise InvalidInputError("--policy" if policy else f"{file}: fleet.planner", ", ".join(_PLANNED), wanted.value)
    choice = choose(problem) if wanted is FleetPolicy.AUTO else None
    planner = choice.planner if choice else FleetPlanner(wanted.value)
    table = rate_table(problem)
    flotilla = first_members(problem, table, planner)
    found = plan_to_proto(problem, table, planner, flotilla, assign_gpus(flotilla.gpus, problem.gpus_per_node))
    if choice is not None:
        found.planner, found.reason = choice.planner.value, choice.reason
    if as_json:
        print_json(to_proto_dict(found))
    else:
        _print(problem, table, flotilla, found)


def first_members(problem: FleetProblem, table: RateTable, planner: FleetPlanner) -> Flotilla:
    """The members that train first, and their GPUs."""
    work = dict(enumerate(problem.samples()))
    match planner:
        case FleetPlanner.FLEET:
            return create_flotilla(table, tuple(work), problem.gpus, problem.tolerance)
        case FleetPlanner.MAKESPAN:
            counts = replanned(table, work, {}, problem.gpus, stall_s=0.0)
        case _:
            counts = dict.fromkeys(longest_first(work, table)[: problem.gpus], 1)
    return Flotilla(tuple(counts), tuple(counts.values()))


def _print(problem: FleetProblem, table: RateTable, flotilla: Flotilla, found: fleet_pb2.FleetPlan) -> None:
    rows = [
        (
            placement.model_id,
            str(len(placement.gpu_indices)),
            f"{rate:,.1f}",
            " ".join(str(gpu) for gpu in placement.gpu_indices),
            " ".join(str(node) for node in sorted({gpu // problem.gpus_per_node for gpu in placement.gpu_indices})),
        )
        for placement, rate in zip(found.members, flotilla.rates(table), strict=True)
    ]
    print_table(("member", "GPUs", "samples/s", "which", "nodes"), rows)
    typer.echo(
        f"{len(rows)} of {len(problem.models)} members on {sum(flotilla.gpus)} of {problem.gpus} GPUs, "
        f"the slowest at {found.pace:,.1f} samples/s"
    )
    if found.HasField("reason"):
        typer.echo(f"{found.planner}, because {found.reason}")
