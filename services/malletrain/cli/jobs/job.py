"""`malletrain job ID`: one job, its progress and its history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import grpc
import typer

from malletrain.caller.dependencies import dependencies_in_words
from malletrain.caller.job_file import job_file_text
from malletrain.caller.metric_histories import visible_histories
from malletrain.cli.jobs.curve import loss_dict, losses_of
from malletrain.cli.jobs.job_output import (
    LABEL_CELLS,
    event_dict,
    is_whole,
    job_dict,
    limits_in_words,
    metric_facts,
    parameters_in_words,
    reason_of,
    run_in_words,
    saves_in_words,
    slow_workers_in_words,
)
from malletrain.cli.jobs.metrics import SPARKLINE_POINTS, history_facts
from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.jobs.outlook import (
    ask_services,
    eta_in_words,
    lost_in_words,
    outlook,
    outlook_dict,
    samples_in_words,
)
from malletrain.cli.jobs.waiting_reasons import tell_why_jobs_wait
from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import (
    JsonOption,
    ago,
    duration,
    one_line,
    print_json,
    print_table,
    state_name,
    tell,
    to_dict,
)
from malletrain.cli.shared.owner_output import owner_shares, request_in_words, weight_in_words
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.cli.shared.terminal import open_console
from malletrain.common.version import VERSION
from malletrain.model.spreading import SpreadLoss, loss_in_words
from malletrain.model.topology import NodeTree, TopologyPreference, level_in_words, spans_in_words
from malletrain.observer.eta import Outlook
from malletrain.observer.job_intake import needs_in_words
from malletrain.runtime.access.identity import PermissionDeniedError
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_value_messages import value_from_proto
from malletrain.runtime.job_values import value_text
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.paging import all_pages
from malletrain.runtime.topology_messages import known_preference
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2, scavenger_pb2


def job(
    job_id: JobArgument,
    as_json: Annotated[bool, JsonOption] = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print it as a job file, as `malletrain submit` reads one.")
    ] = False,
) -> None:
    """Show one job: what it is, how far it is, what happened to it."""
    if as_toml:
        if as_json:
            raise InvalidInputError("--toml", "no --json beside it")
        _print_job_file(job_id)
        return
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        details = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
        tell_why_jobs_wait(stubs, [details])
        events = _events(stubs, job_id)
        weighed = details.share_weight not in (0.0, 1.0)  # by its owner's fair share
        owners = owner_shares(stubs).owners if weighed else ()
        progress = stubs.monitor.GetProgress(
            monitor_pb2.GetProgressRequest(job_ids=[job_id]), timeout=DEADLINE_SECONDS
        ).progress
        seen = outlook(details, ask_services(stubs, [details]))
        histories = visible_histories(stubs, job_id, SPARKLINE_POINTS)
        topology = "" if as_json else topology_in_words(stubs, details)
        losses = losses_of(stubs, job_id)
    if as_json:
        entry = job_dict(details) | {"outlook": outlook_dict(seen)}
        entry["progress"] = to_dict(progress[0]) if progress else None
        entry["loggedMetrics"] = {history.name: to_dict(history.points[-1]) for history in histories}
        entry["spreadLosses"] = list(map(loss_dict, losses))
        entry["events"] = [event_dict(event) for event in events]
        print_json(entry)
        return
    reported = progress[0] if progress else monitor_pb2.Progress()
    _print_facts(details, reported, weight_in_words(details, owners), seen, topology, losses, histories)
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


def _print_job_file(job_id: str) -> None:
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        details = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
    if not is_whole(details):
        raise PermissionDeniedError(f"{job_id} is another user's: only its owner and operators see its command")
    if hidden := [name for name, value in details.spec.environment.items() if value == "***"]:
        tell(f"note: the values of {', '.join(sorted(hidden))} are not shown, since they look like secrets")
    typer.echo(job_file_text(details.spec), nl=False)


def _events(stubs: ServiceStubs, job_id: str) -> list[job_manager_pb2.JobEvent]:
    request = job_manager_pb2.ListJobEventsRequest(job_id=job_id)
    pages = all_pages(stubs.job_manager.ListJobEvents, request, timeout=DEADLINE_SECONDS)
    return [event for page in pages for event in page.events]


def _print_facts(
    details: resources_pb2.Job,
    progress: monitor_pb2.Progress,
    weight: str,
    seen: Outlook,
    topology: str,
    losses: Sequence[SpreadLoss],
    histories: Sequence[monitor_pb2.MetricHistory],
) -> None:
    now, phase = time.time(), progress.phase
    facts = {
        "job": f"{details.id}  {details.spec.name}",
        "owner": details.owner,
        **({"project": details.spec.project} if details.spec.project else {}),
        **({"command": " ".join(details.spec.command)} if is_whole(details) else {}),
        **({"runs as": run_in_words(details.spec)} if is_whole(details) else {}),
        "state": f"{state_name(details.state)}: {reason_of(details)}".replace("\n", f"\n{' ' * LABEL_CELLS}"),
        "submitted": f"{ago(details.create_time, now)} ago",
        **({"fleet": f"{details.fleet_id}  {details.spec.fleet.name}"} if details.fleet_id else {}),
        **(
            {"array": f"{details.array_id}  {parameters_in_words(details.spec.array_parameters)}"}
            if details.array_id
            else {}
        ),
        "scale": scale_in_words(details),
        **({"after": after} if (after := dependencies_in_words(details.spec)) else {}),
        **({"needs nodes of": needs} if (needs := needs_in_words(details.spec.needs)) else {}),
        **({"topology": topology} if topology else {}),
        "weight": weight,
        **({"value": value_text(value_from_proto(details.spec))} if details.spec.HasField("value") else {}),
        **({"burst buffer": request_in_words(details)} if details.spec.burst_buffer_gb else {}),
        **({"limits": limits_in_words(details.spec.limits)} if details.spec.HasField("limits") else {}),
        "nodes wanted": " ".join(details.wanted_nodes) or "none",
        "nodes commanded": " ".join(details.commanded_nodes) or "none",
        "nodes confirmed": " ".join(details.confirmed_nodes) or "none",
        "samples": f"{samples_in_words(seen, details.spec.target_samples)}, {lost_in_words(details, progress)}",
        **({"phase": f"{phase.name}, for {duration(phase.seconds)}"} if progress.HasField("phase") else {}),
        "throughput": f"{progress.rate:,.1f} samples/s" if progress.rate else "not measured yet",
        **({"spread": f"\n{' ' * LABEL_CELLS}".join(map(loss_in_words, losses))} if losses else {}),
        **({} if details.HasField("end_time") else {"done in": eta_in_words(seen)}),
        **({"saves": saves_in_words(details)} if details.saves_fail else {}),
        **({"slow workers": slow} if (slow := slow_workers_in_words(progress)) else {}),
        "rescales": f"{details.rescales}, preemptions {details.preemptions}, restarts {details.restarts}",
    }
    if details.last_failure and details.state != resources_pb2.JOB_STATE_FAILED:
        facts["last failure"] = one_line(details.last_failure)
    if details.left_out_scales:
        facts["left out"] = f"{', '.join(map(str, details.left_out_scales))} nodes, where its script fails soon"
    if details.supervisor_version not in ("", VERSION):
        facts["supervisor"] = f"of version {details.supervisor_version}"
    if details.HasField("end_time"):
        facts["took"] = duration(unix_seconds(details.end_time) - unix_seconds(details.create_time))
    facts |= history_facts(histories, tuple(facts))
    facts |= metric_facts(details.metrics, facts)
    console = open_console(soft_wrap=True)
    for label, value in facts.items():
        console.print(f"{label:>{LABEL_CELLS - 2}}  ", style="bold", markup=False, highlight=False, end="")
        console.print(value, markup=False, highlight=False)


def scale_in_words(job: resources_pb2.Job) -> str:
    """The scales that it may have."""
    spec = job.spec
    bounds = f"{spec.min_nodes} to {spec.max_nodes} {'GPUs' if job.fleet_id else 'nodes'}"
    replica = spec.nodes_per_replica
    if replica <= 1:
        return bounds
    count = len(job.commanded_nodes) // replica
    return f"{bounds}, in replicas of {replica}" + (f"; {count} of them now" if count else "")


def topology_in_words(stubs: ServiceStubs, job: resources_pb2.Job) -> str:
    """What a job prefers, and how many groups it spans; empty where it has no preference."""
    preference = known_preference(job.spec.topology)
    if preference is TopologyPreference.NONE:
        return ""
    preferred = "nodes near each other preferred"
    if preference.requires:
        by_replica = preference is TopologyPreference.REQUIRE_REPLICA
        which = f"the {job.spec.nodes_per_replica} nodes of each replica" if by_replica else "all nodes"
        preferred = f"{which} in one {level_in_words(job.spec.topology_level)}"
    try:
        nodes = stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
    except grpc.RpcError:
        return preferred  # the job is shown all the same
    paths = {node.name: tuple(node.topology) for node in nodes}
    own = [name for name in job.commanded_nodes if name in paths]
    if not any(paths.values()):
        return f"{preferred}; where nodes are is not known"
    if not own:
        return preferred
    return f"{preferred}; groups that its nodes are in: {spans_in_words(NodeTree.of(paths, paths).spans(own))}"
