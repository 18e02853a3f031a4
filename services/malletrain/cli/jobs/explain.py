"""`malletrain explain [JOB|FLEET|NODE|PLAN]`: why a job has its nodes, why a node its job, why a plan is as it is."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import grpc
import typer

from malletrain.cli.jobs.job_output import reason_of, saves_in_words
from malletrain.cli.jobs.naming import decision_in_words, is_fleet, own_job_of
from malletrain.cli.jobs.waiting_reasons import tell_why_jobs_wait
from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import JsonOption, ago, duration, print_json, state_name, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import allocator_pb2, job_manager_pb2, resources_pb2

_JOB = re.compile(r"[jf]\d{6,}\Z")
_DEADLINE_SECONDS = 6 * DEADLINE_SECONDS
"""Explanations of large plans take seconds, and wait for each other."""


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[JOB|FLEET|NODE|PLAN]",
            help="A job (yours also by its name), a fleet, a node, or a plan's generation; by default the newest plan.",
        ),
    ] = "",
    plan: Annotated[int, typer.Option(min=0, help="Generation of the plan that is asked; 0: the newest.")] = 0,
    node: Annotated[bool, typer.Option("--node", help="Take the name for a node's, whatever it looks like.")] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Say why a job has its nodes, and not one more or fewer; why a node its job; what a node is worth."""
    request = request_of(what, plan, node=node)
    with connect() as stubs:
        if request.node and not node and (own := own_job_of(stubs, what)):
            request = request_of(own, plan)
        job = _job(stubs, request.job_id) if request.job_id and not is_fleet(request.job_id) else None
        try:
            explanation = stubs.allocator.ExplainPlan(request, timeout=_DEADLINE_SECONDS).explanation
        except grpc.RpcError as error:
            if job is None or error.code() != grpc.StatusCode.NOT_FOUND:
                raise
            explanation, missing = None, error.details() or ""
        else:
            missing = ""
        if job is not None:
            tell_why_jobs_wait(stubs, [job])
    if as_json:
        print_json(_as_dict(explanation, job))
        return
    lines = _about_job(job, time.time()) if job else []
    lines += _about_plan(explanation, job, time.time()) if explanation else [missing]
    for line in lines:
        typer.echo(line)


def request_of(what: str, generation: int, *, node: bool = False) -> allocator_pb2.ExplainPlanRequest:
    """What a user asks with one word: a job (`j000001`), a plan (`17`), or a node.

    Args:
        what: The word; empty: a plan. A fleet is asked for as a job.
        generation: Generation of the plan that is asked, from the option; 0: the newest.
        node: Whether the word is a node's name whatever it looks like.

    Raises:
        InvalidInputError: there are two generations, or the node has no name.
    """
    if node and not what:
        raise InvalidInputError("--node", "the name of a node before it")
    if node or not (what == "" or what.isdecimal() or _JOB.match(what)):
        return allocator_pb2.ExplainPlanRequest(generation=generation, node=what)
    if what.isdecimal():
        if generation:
            raise InvalidInputError("--plan", "a job or a node beside it", what)
        if not 0 < int(what) < 2**63:
            raise InvalidInputError("PLAN", "a generation, 1 or more", what)
        return allocator_pb2.ExplainPlanRequest(generation=int(what))
    return allocator_pb2.ExplainPlanRequest(generation=generation, job_id=what)


def _job(stubs: ServiceStubs, job_id: str) -> resources_pb2.Job:
    job: resources_pb2.Job = stubs.job_manager.GetJob(
        job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS
    ).job
    return job


def _as_dict(explanation: allocator_pb2.PlanExplanation | None, job: resources_pb2.Job | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"explanation": to_dict(explanation) if explanation else None}
    if job is not None:
        entry["job"] = {
            "id": job.id,
            "state": state_name(job.state),
            "reasonCode": resources_pb2.JobReason.Name(job.reason_code),
            "reason": reason_of(job),
            "admitted": job.admitted,
            "notBefore": to_dict(job)["notBefore"] if job.HasField("not_before") else None,
        }
    return entry


def _about_job(job: resources_pb2.Job, now: float) -> list[str]:
    """What JobManager knows of it: state, queue, back-off, its owner's limit."""
    lines = [f"{job.id} {job.spec.name}: {state_name(job.state)}, {first_line(reason_of(job))}"]
    if job.HasField("not_before") and unix_seconds(job.not_before) > now:
        wait = duration(unix_seconds(job.not_before) - now)
        lines.append(f"  it gets no nodes for {wait}: it backs off after failure {job.restarts}")
    if job.state == resources_pb2.JOB_STATE_QUEUED:
        lines.append("  it takes part in plans once it is admitted")
    if job.saves_fail:
        lines.append(f"  its saves: {saves_in_words(job)}")
    if job.share_weight not in (0.0, 1.0):
        lines.append(f"  its weight is multiplied by {job.share_weight:.3g} for its owner's fair share")
    return lines


def _about_plan(explanation: allocator_pb2.PlanExplanation, job: resources_pb2.Job | None, now: float) -> list[str]:
    outcome = "applied" if explanation.applied else f"refused: {explanation.refusal}"
    made = f"plan {explanation.generation}, {ago(explanation.create_time, now)} ago"
    lines = [f"{made}, {outcome}; because {explanation.trigger}"]
    if job is not None and job.plan_generation > explanation.generation:
        lines.append(f"  a later plan, {job.plan_generation}, has changed the job's nodes since")
    lines += [f"  left out: {omission}" for omission in explanation.omissions]
    if explanation.status != "OPTIMAL":
        lines.append(f"  it is not proven to be the best one ({explanation.status})")
    if not explanation.parts_known:
        lines.append("  it was made by an earlier version: pools and scale pins are not known")
    if explanation.HasField("node"):
        lines += [explanation.node.name, *(f"  {line}" for line in explanation.node.sentences)]
    for entry in explanation.jobs:
        owner = f" of {entry.owner}" if entry.owner else ""
        pool = f", pool {entry.pool}" if entry.pool else ""
        lines += [f"{entry.job_id}{owner}{pool}", *(f"  {line}" for line in entry.sentences)]
    for fleet in explanation.fleets:
        lines += [fleet.fleet_id, *(f"  {line}" for line in decision_in_words(fleet).splitlines())]
        lines += [f"  {entry.job_id}: {', '.join(entry.nodes) or 'waits'}" for entry in fleet.members]
    for part in explanation.parts:
        lines += part.sentences
    return lines
