"""`malletrain fleet submit FILE`: hands in an ensemble."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from malletrain.caller.job_request import JobRequest, needs_of, parse_backend
from malletrain.cli.fleet.ensemble_file import EnsembleToml, FleetSection, MemberSection, read_members
from malletrain.cli.jobs.job_output import job_dict
from malletrain.cli.jobs.needs import tell_of_unsuited
from malletrain.cli.shared.output import JsonOption, print_json
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.common.environment import BATCH_PER_WORKER, FEED, FEED_ACROSS_NODES
from malletrain.fleet.problem import BeyondPeak, FleetPlanner, Pace
from malletrain.fleet.rates import scaled_rates
from malletrain.fleet.spec import FleetSpec
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import spec_to_proto
from malletrain.v1 import job_manager_pb2, resources_pb2


def submit(
    file: Annotated[Path, typer.Argument(help="The ensemble: a file NAME.toml with a command for each member.")],
    workdir: Annotated[Path | None, typer.Option(help="Folder that the workers start in; by default this one.")] = None,
    project: Annotated[
        str, typer.Option(help="Project that its usage is accounted to, in place of the one in the file.")
    ] = "",
    no_feed: Annotated[bool, typer.Option("--no-feed", help="Each member prepares its samples itself.")] = False,
    request_id: Annotated[str, typer.Option(help="The same id again submits nothing twice.")] = "",
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Submit an ensemble: its members train as one unit, and share nodes with nobody else.

    A member is a job that has GPUs where other jobs have nodes. It is complete as any job, at the latest after
    max_epochs. One that fails for good leaves the others alone.
    """
    content = read_members(file)
    specs = member_specs(content, (workdir or Path.cwd()).resolve(), with_feed=not no_feed)
    for spec in specs:
        spec.project = project or content.fleet.project
    request = job_manager_pb2.SubmitJobsRequest(request_id=request_id or uuid.uuid4().hex, specs=specs)
    with connect() as stubs:
        stored = stubs.job_manager.SubmitJobs(request, timeout=DEADLINE_SECONDS).jobs
        # All members need the same.
        for line in tell_of_unsuited(stubs, stored[:1]):
            typer.echo(line, err=True)
    if as_json:
        print_json({"fleetId": stored[0].fleet_id, "jobs": [job_dict(job) for job in stored]})
    else:
        typer.echo(stored[0].fleet_id)


def member_specs(content: EnsembleToml, workdir: Path, *, with_feed: bool = True) -> list[resources_pb2.JobSpec]:
    """The jobs of an ensemble.

    Args:
        content: The ensemble, checked.
        workdir: Folder that the workers start in.
        with_feed: Whether members share a feed where the file names one.
    """
    fleet = content.fleet
    terms = fleet_spec(fleet, with_feed=with_feed)
    common = spec_to_proto(terms)
    feed = {} if terms.feed is None else {FEED: terms.feed}
    if terms.feed and not fleet.feed_across_nodes:
        feed[FEED_ACROSS_NODES] = "0"
    needs = _needs(fleet)
    specs = []
    for member in content.model:
        curve = member_curve(fleet, member)
        batch = {BATCH_PER_WORKER: str(member.batch_per_worker)} if member.batch_per_worker else {}
        specs.append(
            resources_pb2.JobSpec(
                name=member.name,
                command=member.command,
                working_directory=str(workdir),
                environment=fleet.environment | member.environment | feed | batch,
                min_nodes=1,
                max_nodes=len(curve) if len(curve) > 1 else fleet.max_nodes * fleet.gpus_per_node,
                slots_per_node=1,
                curve=curve,
                weight=member.weight,
                target_samples=round(member.max_epochs * fleet.samples_per_epoch),
                backend=parse_backend(fleet.backend),
                profile=resources_pb2.PROFILE_MODE_NEVER if len(curve) > 1 else resources_pb2.PROFILE_MODE_AUTO,
                fleet=common,
                needs=needs,
            )
        )
    return specs


def _needs(fleet: FleetSection) -> resources_pb2.NodeNeeds | None:
    try:
        return needs_of(JobRequest(command=("",), **fleet.needs.model_dump()))
    except InvalidInputError as error:
        raise error.at(f"fleet.needs.{error.field.removeprefix('--')}") from None


def fleet_spec(fleet: FleetSection, *, with_feed: bool = True) -> FleetSpec:
    """What the members have in common; arguments as of `member_specs`."""
    named = fleet.feed if "feed" in fleet.model_fields_set else None
    return FleetSpec(
        name=fleet.name or "fleet",
        max_nodes=fleet.max_nodes,
        planner=FleetPlanner(fleet.planner),
        gpus_per_node=fleet.gpus_per_node,
        rate_tolerance=fleet.rate_tolerance,
        active_share=fleet.active_share,
        samples_per_epoch=fleet.samples_per_epoch,
        preprocess_rate=fleet.preprocess_rate,
        pace=Pace(fleet.pace),
        beyond_peak=BeyondPeak(fleet.beyond_peak),
        checkpoint_seconds=fleet.checkpoint_seconds,
        feed=named if with_feed else "",
    )


def member_curve(fleet: FleetSection, member: MemberSection) -> list[resources_pb2.ScalingPoint]:
    """A member's curve by GPUs: its rates, and Eq. 5 beyond them up to its peak; a single rate stands alone.

    After one rate Eq. 5 would be linear, which promises too much: the rest is measured.
    """
    if len(member.rates) < 2:
        return [resources_pb2.ScalingPoint(nodes=1, rate=rate) for rate in member.rates]
    rates = scaled_rates(member.rates, fleet.max_nodes * fleet.gpus_per_node, fleet.gpus_per_node)
    peak = rates.index(max(rates)) + 1
    return [resources_pb2.ScalingPoint(nodes=count, rate=rate) for count, rate in enumerate(rates[:peak], 1)]
