"""`malletrain fleet compare FILE`: one ensemble by every planner, beside a bound that none can beat."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.cli.fleet.ensemble_file import FileArgument, GpusOption, read_ensemble
from malletrain.cli.fleet.messages import plan_to_proto, profile_to_proto, run_to_proto
from malletrain.cli.fleet.planning import first_members
from malletrain.cli.fleet.policies import FleetPolicy, simulate_policy
from malletrain.cli.shared.output import JsonOption, print_json, print_table, to_proto_dict
from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import FleetPlanner, FleetProblem
from malletrain.fleet.rates import profile_plan, rate_table
from malletrain.v1 import fleet_pb2


def compare(file: FileArgument, gpus: GpusOption = None, as_json: Annotated[bool, JsonOption] = False) -> None:
    """Compare all planners on an ensemble: how long does each take?"""
    found = comparison(read_ensemble(file, gpus).problem)
    if as_json:
        # Numbers of trainings are whole, but may be too large for the integers of protobuf.
        numbers = {name: int(number) for name, number in to_proto_dict(found.profile).items()}
        print_json({**to_proto_dict(found), "profile": numbers})
        return
    times = {
        "flotillas (FLEET-G)": found.fleet_global.seconds,
        "flotillas on released GPUs (FLEET-L)": found.local,
        "by remaining work (makespan)": found.makespan,
        "one GPU each, longest first (list)": found.list_longest_first,
        "one GPU each, in the order of the file": found.list_in_order,
        "rounds of one GPU each": found.rounds,
        "one member after the other": found.sequential,
    }
    rows = [
        (name, f"{seconds:,.0f}", f"{seconds / found.lower_bound:.2f}")
        for name, seconds in sorted(times.items(), key=lambda item: item[1])
    ]
    print_table(("how", "seconds", "times the bound"), rows)
    typer.echo(f"no schedule is faster than {found.lower_bound:,.0f} s")


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
