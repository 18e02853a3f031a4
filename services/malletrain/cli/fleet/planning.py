"""`malletrain fleet plan|compare|simulate`: which members of an ensemble train when, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.fleet.ensemble_file import (
    FileArgument,
    GpusOption,
    plan_to_proto,
    profile_to_proto,
    read_ensemble,
    run_to_proto,
)
from malletrain.cli.fleet.live import show_plan
from malletrain.cli.fleet.policies import FleetPolicy, simulate_policy
from malletrain.cli.jobs.naming import is_fleet
from malletrain.cli.shared.output import JsonOption, duration, print_json, print_table, to_proto_dict
from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.baselines import longest_first
from malletrain.fleet.choose import SIMULATED, choose
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import FleetPlanner, FleetProblem
from malletrain.fleet.rates import RateTable, profile_plan, rate_table
from malletrain.fleet.remaining_work import replan_counts
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
    message = plan_to_proto(problem, table, planner, flotilla, assign_gpus(flotilla.gpus, problem.gpus_per_node))
    if choice is not None:
        message.planner, message.reason = choice.planner.value, choice.reason
    if as_json:
        print_json(to_proto_dict(message))
    else:
        _print(problem, table, flotilla, message)


def first_members(problem: FleetProblem, table: RateTable, planner: FleetPlanner) -> Flotilla:
    """The members that train first, and their GPUs."""
    work = dict(enumerate(problem.samples()))
    match planner:
        case FleetPlanner.FLEET:
            return create_flotilla(table, tuple(work), problem.gpus, problem.tolerance)
        case FleetPlanner.MAKESPAN:
            counts = replan_counts(table, work, {}, problem.gpus, stall_s=0.0)
        case _:
            counts = dict.fromkeys(longest_first(work, table)[: problem.gpus], 1)
    return Flotilla(tuple(counts), tuple(counts.values()))


def _print(problem: FleetProblem, table: RateTable, flotilla: Flotilla, message: fleet_pb2.FleetPlan) -> None:
    rows = [
        (
            placement.model_id,
            str(len(placement.gpu_indices)),
            f"{rate:,.1f}",
            " ".join(str(gpu) for gpu in placement.gpu_indices),
            " ".join(str(node) for node in sorted({gpu // problem.gpus_per_node for gpu in placement.gpu_indices})),
        )
        for placement, rate in zip(message.members, flotilla.rates(table), strict=True)
    ]
    print_table(("member", "GPUs", "samples/s", "which", "nodes"), rows)
    typer.echo(
        f"{len(rows)} of {len(problem.models)} members on {sum(flotilla.gpus)} of {problem.gpus} GPUs, "
        f"the slowest at {message.pace:,.1f} samples/s"
    )
    if message.HasField("reason"):
        typer.echo(f"{message.planner}, because {message.reason}")


def compare(file: FileArgument, gpus: GpusOption = None, as_json: Annotated[bool, JsonOption] = False) -> None:
    """Compare all planners on an ensemble: how long does each take?"""
    compared = comparison(read_ensemble(file, gpus).problem)
    if as_json:
        # Numbers of trainings are whole, but may be too large for the integers of protobuf.
        numbers = {name: int(number) for name, number in to_proto_dict(compared.profile).items()}
        print_json({**to_proto_dict(compared), "profile": numbers})
        return
    times = {
        "flotillas (FLEET-G)": compared.fleet_global.seconds,
        "flotillas on released GPUs (FLEET-L)": compared.local,
        "by remaining work (makespan)": compared.makespan,
        "one GPU each, longest first (list)": compared.list_longest_first,
        "one GPU each, in the order of the file": compared.list_in_order,
        "rounds of one GPU each": compared.rounds,
        "one member after the other": compared.sequential,
    }
    rows = [
        (name, f"{seconds:,.0f}", f"{seconds / compared.lower_bound:.2f}")
        for name, seconds in sorted(times.items(), key=lambda item: item[1])
    ]
    print_table(("how", "seconds", "times the bound"), rows)
    typer.echo(f"no schedule is faster than {compared.lower_bound:,.0f} s")


def comparison(problem: FleetProblem) -> fleet_pb2.FleetComparison:
    """An ensemble by every planner."""

    def seconds(policy: FleetPolicy) -> float:
        return simulate_policy(problem, policy)[0].seconds

    table = rate_table(problem)
    first = first_members(problem, table, FleetPlanner.FLEET)
    gpus = assign_gpus(first.gpus, problem.gpus_per_node)
    return fleet_pb2.FleetComparison(
        name=problem.name,
        profile=profile_to_proto(profile_plan(problem.models, problem.gpus_per_node)),
        first=plan_to_proto(problem, table, FleetPlanner.FLEET, first, gpus),
        fleet_global=run_to_proto(problem, simulate_policy(problem, FleetPolicy.FLEET)[0]),
        local=seconds(FleetPolicy.FLEET_LOCAL),
        list_longest_first=seconds(FleetPolicy.LIST),
        list_in_order=seconds(FleetPolicy.LIST_IN_ORDER),
        rounds=seconds(FleetPolicy.ROUNDS),
        sequential=seconds(FleetPolicy.SEQUENTIAL),
        makespan=seconds(FleetPolicy.MAKESPAN),
        lower_bound=lower_bound(problem),
    )


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
    simulated = run_to_proto(problem, run)
    if choice is not None:
        simulated.planner, simulated.reason = choice.planner.value, choice.reason
    if as_json:
        print_json(to_proto_dict(simulated))
    else:
        _print_simulated(problem, wanted, simulated)


def _print_simulated(problem: FleetProblem, policy: FleetPolicy, simulated: fleet_pb2.FleetRun) -> None:
    if simulated.flotillas:
        rows = [
            (
                str(number),
                f"{flotilla.start_seconds:,.0f} to {flotilla.end_seconds:,.0f}",
                str(len(flotilla.members)),
                str(sum(len(member.gpu_indices) for member in flotilla.members)),
                " ".join(flotilla.completed) or "-",
            )
            for number, flotilla in enumerate(simulated.flotillas, 1)
        ]
        print_table(("flotilla", "seconds", "members", "GPUs", "done"), rows)
    else:
        ends = sorted(simulated.end_seconds.items(), key=lambda item: item[1])
        print_table(("member", "done after, s"), [(name, f"{seconds:,.0f}") for name, seconds in ends])
    bound = lower_bound(problem)
    typer.echo(
        f"{policy.value} trains {len(problem.models)} members on {problem.gpus} GPUs in {simulated.seconds:,.0f} s "
        f"({duration(simulated.seconds)}); no schedule is faster than {bound:,.0f} s"
    )
    if simulated.HasField("reason"):
        typer.echo(f"{simulated.planner}, because {simulated.reason}")
