"""`malletrain job ID`: one job, its progress and its history."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from malletrain.cli.burst_buffer import request_in_words
from malletrain.cli.job_output import event_dict, is_whole, job_dict, metric_facts, reason_of
from malletrain.cli.outlook import ask, eta_in_words, outlook, outlook_dict, samples_in_words
from malletrain.cli.output import (
    JsonOption,
    ago,
    duration,
    first_line,
    print_json,
    print_table,
    state_name,
    to_dict,
)
from malletrain.cli.owner_output import owner_shares, weight_in_words
from malletrain.cli.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.cli.waiting_reasons import tell_why_jobs_wait
from malletrain.common.version import VERSION
from malletrain.dashboard.outlook import Outlook
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2

_LABEL_CELLS = 18


def job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Job identifier, e.g. j000001.")],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Show one job: what it is, how far it is, what happened to it."""
    with connect() as stubs:
        found = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
        tell_why_jobs_wait(stubs, [found])
        events = _events(stubs, job_id)
        weighed = found.share_weight not in (0.0, 1.0)  # by its owner's fair share
        owners = owner_shares(stubs).owners if weighed else ()
        progress = stubs.monitor.GetProgress(
            monitor_pb2.GetProgressRequest(job_ids=[job_id]), timeout=DEADLINE_SECONDS
        ).progress
        seen = outlook(found, ask(stubs, [found]))
    if as_json:
        entry = job_dict(found) | {"outlook": outlook_dict(seen)}
        entry["progress"] = to_dict(progress[0]) if progress else None
        entry["events"] = [event_dict(event) for event in events]
        print_json(entry)
        return
    _print_facts(found, progress[0] if progress else monitor_pb2.Progress(), weight_in_words(found, owners), seen)
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.unix_seconds)),
            state_name(event.to_state),
            str(len(event.nodes)),
            first_line(reason_of(event)),
        )
        for event in events
    ]
    print_table(("time", "state", "nodes", "reason"), rows)


def _events(stubs: ServiceStubs, job_id: str) -> list[job_manager_pb2.JobEvent]:
    found: list[job_manager_pb2.JobEvent] = []
    token = ""
    while True:
        request = job_manager_pb2.ListJobEventsRequest(job_id=job_id, page_token=token)
        response = stubs.job_manager.ListJobEvents(request, timeout=DEADLINE_SECONDS)
        found.extend(response.events)
        token = response.next_page_token
        if not token:
            return found


def _print_facts(found: resources_pb2.Job, progress: monitor_pb2.Progress, weight: str, seen: Outlook) -> None:
    now = time.time()
    facts = {
        "job": f"{found.id}  {found.spec.name}",
        "owner": found.owner,
        **({"command": " ".join(found.spec.command)} if is_whole(found) else {}),
        "state": f"{state_name(found.state)}: {reason_of(found)}".replace("\n", f"\n{' ' * _LABEL_CELLS}"),
        "submitted": f"{ago(found.create_time, now)} ago",
        **({"fleet": f"{found.fleet_id}  {found.spec.fleet.name}"} if found.fleet_id else {}),
        "scale": f"{found.spec.min_nodes} to {found.spec.max_nodes} {'GPUs' if found.fleet_id else 'nodes'}",
        "weight": weight,
        **({"burst buffer": request_in_words(found)} if found.spec.burst_buffer_gb else {}),
        "nodes wanted": " ".join(found.wanted_nodes) or "none",
        "nodes commanded": " ".join(found.commanded_nodes) or "none",
        "nodes confirmed": " ".join(found.confirmed_nodes) or "none",
        "samples": f"{samples_in_words(seen, found.spec.target_samples)}, {progress.samples_lost:,} lost by rollbacks",
        "throughput": f"{progress.rate:,.1f} samples/s" if progress.rate else "not measured yet",
        **({} if found.HasField("end_time") else {"done in": eta_in_words(seen)}),
        "rescales": f"{found.rescales}, preemptions {found.preemptions}, restarts {found.restarts}",
    }
    if found.supervisor_version not in ("", VERSION):
        facts["supervisor"] = f"of version {found.supervisor_version}"
    if found.HasField("end_time"):
        facts["took"] = duration(unix_seconds(found.end_time) - unix_seconds(found.create_time))
    facts |= metric_facts(found.metrics, facts)
    console = Console(soft_wrap=True)
    for label, value in facts.items():
        console.print(f"[bold]{label:>{_LABEL_CELLS - 2}}[/]  ", end="")
        console.print(value, markup=False, highlight=False)
