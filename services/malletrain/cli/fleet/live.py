"""`malletrain fleet status ID`, and the newest plan of a fleet."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from malletrain.cli.jobs.job_output import job_dict, reason_of
from malletrain.cli.jobs.naming import decision_in_words, is_fleet, members_of
from malletrain.cli.shared.output import JsonOption, print_json, print_table, state_name, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError, NotFoundError
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import allocator_pb2, monitor_pb2, resources_pb2


def status(
    fleet_id: Annotated[str, typer.Argument(metavar="ID", help="Identifier of the fleet, e.g. f000012.")],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Show a fleet: how far its members are, on which GPUs, what its feed prepares, who divides the GPUs, and why."""
    _check(fleet_id)
    with connect() as stubs:
        members = members_of(stubs, fleet_id)
        decision = _decision(stubs, fleet_id)
        request = monitor_pb2.GetProgressRequest(job_ids=[job.id for job in members])
        progress = {
            entry.job_id: entry for entry in stubs.monitor.GetProgress(request, timeout=DEADLINE_SECONDS).progress
        }
    if as_json:
        rates = {job_id: entry.rate for job_id, entry in progress.items()}
        entries = [
            {
                **job_dict(job),
                "rate": rates.get(job.id, 0.0),
                "epochs": _epochs(job),
                "converged": describe_convergence(job),
            }
            for job in members
        ]
        print_json(
            {
                "fleetId": fleet_id,
                "fleet": to_dict(members[0].spec.fleet),
                "members": entries,
                "plan": to_dict(decision) if decision else None,
                "feed": feed_dict(progress.values()),
                "waiting": waiting_members(members),
            }
        )
        return
    print_table(
        ("job", "member", "state", "GPUs", "samples/s", "epochs", "converged", "reason"),
        [_row(job, progress.get(job.id)) for job in members],
        one_line=True,
    )
    ended = sum(job.state in FINAL_JOB_STATES for job in members)
    typer.echo(f"{fleet_id} {members[0].spec.fleet.name}: {ended} of {len(members)} members have ended")
    for line in (feed_in_words(progress.values()), waiting_in_words(members)):
        if line:
            typer.echo(line)
    if decision:
        typer.echo(decision_in_words(decision))


def show_plan(fleet_id: str, *, as_json: bool) -> None:
    """Print how the newest plan divides the GPUs of a fleet.

    Raises:
        NotFoundError: the newest plan has no such fleet.
    """
    _check(fleet_id)
    with connect() as stubs:
        members = {job.id: job for job in members_of(stubs, fleet_id)}
        decision = _decision(stubs, fleet_id)
    if decision is None:
        raise NotFoundError(f"the newest plan does not have fleet {fleet_id}: it has not begun, or has ended")
    if as_json:
        print_json(to_dict(decision))
        return
    shares = {entry.job_id: entry.gpus for entry in decision.flotilla}
    rows = [
        (
            entry.job_id,
            members[entry.job_id].spec.name if entry.job_id in members else "",
            str(len(entry.nodes)),
            " ".join(entry.nodes) or "-",
            str(shares.get(entry.job_id, "-")),
        )
        for entry in decision.members
    ]
    last = None if shares else -1  # the last column is of flotillas
    columns = ("job", "member", "GPUs", "which", "flotilla")
    print_table(columns[:last], [row[:last] for row in rows])
    typer.echo(decision_in_words(decision))


def _check(fleet_id: str) -> None:
    if not is_fleet(fleet_id):
        raise InvalidInputError("ID", "the identifier of a fleet, e.g. f000012", fleet_id)


def _decision(stubs: ServiceStubs, fleet_id: str) -> allocator_pb2.FleetDecision | None:
    plan = stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=DEADLINE_SECONDS).plan
    return next((decision for decision in plan.fleets if decision.fleet_id == fleet_id), None)


def _row(job: resources_pb2.Job, progress: monitor_pb2.Progress | None) -> Sequence[str]:
    rate = progress.rate if progress and job.commanded_nodes else 0.0
    return (
        job.id,
        job.spec.name,
        state_name(job.state),
        " ".join(job.confirmed_nodes or job.commanded_nodes) or "-",
        f"{rate:,.1f}" if rate else "-",
        _epochs_in_words(job),
        describe_convergence(job),
        reason_of(job),
    )


def _epochs(job: resources_pb2.Job) -> float:
    """Epochs that a member has trained; 0 where the length of an epoch is not known."""
    size = job.spec.fleet.samples_per_epoch
    return job.samples / size if size else 0.0


def _epochs_in_words(job: resources_pb2.Job) -> str:
    size = job.spec.fleet.samples_per_epoch
    if not size:
        return "-"
    most = f" of {job.spec.target_samples / size:g}" if job.spec.target_samples else ""
    return f"{_epochs(job):.2f}{most}"


_MAX_NAMES = 8
_REASONS = {resources_pb2.JOB_REASON_TRAINER_DONE: "yes", resources_pb2.JOB_REASON_TARGET_REACHED: "at max_epochs"}


def describe_convergence(job: resources_pb2.Job) -> str:
    """Whether a member has converged: its script has said so (yes), or it has trained as long as it may."""
    if job.state != resources_pb2.JOB_STATE_COMPLETED:
        return "-"
    return _REASONS.get(job.reason_code, "yes")


def waiting_members(jobs: Iterable[resources_pb2.Job]) -> list[str]:
    """Names of members that have not ended and have no GPU."""
    return [job.spec.name for job in jobs if job.state not in FINAL_JOB_STATES and not job.commanded_nodes]


def feed_dict(progress: Iterable[monitor_pb2.Progress]) -> dict[str, Any] | None:
    """What feeds do for members: medians of what they can prepare, and how many samples came from them; None: nothing.

    Returns:
        `ratePerCore` and `ratePerNode` in samples/s (0: not known), `receivedSamples` that feeds have prepared for the
        members' processes that report, and `preparedSamples` that these have prepared themselves. `processes`: how many
        prepare samples now, 0: not known; `measuredRates`: samples/s that were prepared, by numbers of processes.
    """
    reports = [entry.feed for entry in progress if entry.HasField("feed")]
    if not reports:
        return None
    known = [report for report in reports if report.cpu_seconds > 0]
    return {
        "ratePerCore": statistics.median([1 / report.cpu_seconds for report in known]) if known else 0.0,
        "ratePerNode": statistics.median([report.processes / report.cpu_seconds for report in known]) if known else 0.0,
        "receivedSamples": sum(report.received_samples for report in reports),
        "preparedSamples": sum(report.prepared_samples for report in reports),
        "processes": round(statistics.median([report.running for report in reports])),
        "measuredRates": _measured_rates(reports),
    }


def _measured_rates(reports: Iterable[monitor_pb2.FeedReport]) -> dict[str, float]:
    rates_by_processes: dict[int, list[float]] = {}
    for report in reports:
        for each in report.rates:
            rates_by_processes.setdefault(each.processes, []).append(each.rate)
    return {str(number): statistics.median(rates) for number, rates in sorted(rates_by_processes.items())}


def feed_in_words(progress: Iterable[monitor_pb2.Progress]) -> str:
    """The same, for people; empty: members share no samples."""
    feed = feed_dict(progress)
    if feed is None:
        return ""
    received, all_samples = feed["receivedSamples"], feed["receivedSamples"] + feed["preparedSamples"]
    shared = f"{received / all_samples:.0%} of the samples came from it" if all_samples else "no samples yet"
    if not feed["ratePerCore"]:
        return f"feed: what it can prepare is not known yet; {shared}"
    per_core, per_node = feed["ratePerCore"], feed["ratePerNode"]
    told = f"feed: prepares up to {per_node:,.1f} samples/s on a node, {per_core:,.1f} on a core; {shared}"
    if feed["processes"]:
        rates = feed["measuredRates"].items()
        measured = ", ".join(f"{rate:,.1f} samples/s by {number}" for number, rate in rates)
        told += f"; {feed['processes']} prepare now" + (f" (measured: {measured})" if measured else "")
    return told


def waiting_in_words(jobs: Sequence[resources_pb2.Job]) -> str:
    """Members that wait for GPUs, for people; empty: none does."""
    names = waiting_members(jobs)
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"waiting for GPUs: {', '.join(names[:_MAX_NAMES])}{more}"
