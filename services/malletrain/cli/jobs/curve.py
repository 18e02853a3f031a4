"""`malletrain curve ID` and `malletrain profile ID`: shows a job's scaling curve and its costs, and measures it."""

from __future__ import annotations

import csv
import io
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.output import JsonOption, duration, print_json, print_table, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.model.spreading import SpanRate, SpreadLoss, loss_in_words, spread_losses
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import job_manager_pb2, monitor_pb2, profiler_pb2

_POLL_SECONDS = 1.0


def profile(
    job_id: JobArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done, and print its progress.")] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Measure how a job scales, from the largest available scale downwards. The job trains meanwhile."""
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        request = profiler_pb2.StartProfileRequest(job_id=job_id)
        profiled = stubs.profiler.StartProfile(request, timeout=DEADLINE_SECONDS).profile
        if wait:
            profiled = _wait(stubs, job_id, quiet=as_json)
    if as_json:
        print_json(to_dict(profiled))
        return
    typer.echo(f"{job_id}: {state_of(profiled.run)}: {profiled.run.reason}")


def state_of(run: profiler_pb2.ProfileRun) -> str:
    """`MEASURING` for PROFILE_STATE_MEASURING."""
    return profiler_pb2.ProfileState.Name(run.state).removeprefix("PROFILE_STATE_")


def _wait(stubs: ServiceStubs, job_id: str, *, quiet: bool) -> profiler_pb2.Profile:
    printed = ""
    while True:
        request = profiler_pb2.GetProfileRequest(job_id=job_id)
        profiled = stubs.profiler.GetProfile(request, timeout=DEADLINE_SECONDS).profile
        if profiled.run.state == profiler_pb2.PROFILE_STATE_DONE:
            return profiled
        now = f"{job_id}: {state_of(profiled.run)}: {profiled.run.reason}"
        if now != printed and not quiet:
            typer.echo(now)
        printed = now
        time.sleep(_POLL_SECONDS)


def curve(
    job_id: JobArgument,
    plot: Annotated[Path | None, typer.Option(help="PNG file to draw points, errors and fit to.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the curve as a scaling table for `replay`: model,nodes,samples_per_s."),
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Show a job's scaling curve: points, errors, the source of each point, and what measuring it cost."""
    if plot is not None and find_spec("matplotlib") is None:
        raise InvalidInputError("--plot", "matplotlib, which is not installed: pip install 'malletrain[sim]'")
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        request = profiler_pb2.GetProfileRequest(job_id=job_id)
        profiled = stubs.profiler.GetProfile(request, timeout=DEADLINE_SECONDS).profile
        job = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
        losses = losses_of(stubs, job_id)
    if export is not None:
        _write("--export", export, scaling_table(job.spec.family or job.spec.name, profiled).encode())
    if plot is not None:
        _write("--plot", plot, _draw(job.spec.name, profiled))
    if as_json:
        print_json(to_dict(profiled) | {"spreadLosses": list(map(loss_dict, losses))})
        return
    _print(profiled)
    for loss in losses:
        typer.echo(f"nodes far from each other: {loss_in_words(loss)}")


def source_name(source: profiler_pb2.CurveSource.ValueType) -> str:
    """`measured` for CURVE_SOURCE_MEASURED."""
    return profiler_pb2.CurveSource.Name(source).removeprefix("CURVE_SOURCE_").lower()


def scaling_table(model: str, profile: profiler_pb2.Profile) -> str:
    """The curve in the format of `malletrain replay`, as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("model", "nodes", "samples_per_s"))
    writer.writerow((model, 0, 0))
    writer.writerows((model, point.nodes, f"{point.rate:.6g}") for point in profile.points)
    return buffer.getvalue()


def _print(profiled: profiler_pb2.Profile) -> None:
    now = time.time()
    rows = [
        (
            str(point.nodes),
            f"{point.rate:,.1f}",
            f"±{100 * point.relative_error:.1f} %",
            source_name(point.source),
            str(point.steps) if point.steps else "",
            f"{duration(max(0.0, now - point.unix_seconds))} ago" if point.unix_seconds else "",
        )
        for point in profiled.points
    ]
    print_table(("nodes", "samples/s", "error", "source", "steps", "measured"), rows)
    if profiled.fit:
        typer.echo(f"between measured scales: {profiled.fit}")
    if profiled.family:
        typer.echo(f"family: {profiled.family}")
    typer.echo(
        f"a growth stalls {profiled.scale_up_seconds:.1f} s ({source_name(profiled.scale_up_source)}), "
        f"a shrink {profiled.scale_down_seconds:.1f} s ({source_name(profiled.scale_down_source)})"
    )
    if profiled.HasField("run"):
        _print_run(profiled.run)


def _print_run(run: profiler_pb2.ProfileRun) -> None:
    typer.echo(f"profile: {state_of(run)}: {run.reason}")
    typer.echo(
        f"it took {duration(run.seconds)}, {run.growths} growths, {run.shrinks} shrinks and {run.node_seconds:,.0f} "
        f"node-seconds, {run.stalled_node_seconds:,.0f} of them standing still"
    )
    if run.donor_job_ids:
        typer.echo(f"nodes came from {', '.join(run.donor_job_ids)}")


def _draw(name: str, profiled: profiler_pb2.Profile) -> bytes:
    from malletrain.simulator.report.plots import CurveMark, curve_chart

    marks = [
        CurveMark(point.nodes, point.rate, point.relative_error, source_name(point.source)) for point in profiled.points
    ]
    cost = f", {profiled.run.node_seconds:,.0f} node-seconds" if profiled.HasField("run") else ""
    return curve_chart(f"{profiled.job_id} {name}: {profiled.fit or 'few points'}{cost}", marks).png()


def _write(option: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidInputError(option, f"a file that can be written ({error.strerror})", str(path)) from None
    typer.echo(f"wrote {path}", err=True)


def losses_of(stubs: ServiceStubs, job_id: str) -> tuple[SpreadLoss, ...]:
    """What spreading costs a job; nothing where that is not measured.

    Raises:
        grpc.RpcError: Monitor does not answer.
    """
    request = monitor_pb2.ListScalingRecordsRequest(job_ids=[job_id])
    records = stubs.monitor.ListScalingRecords(request, timeout=DEADLINE_SECONDS).records
    return spread_losses(
        SpanRate(one.point.nodes, one.shared_levels, one.point.rate, one.point.relative_error)
        for record in records
        for one in record.span_points
    )


def loss_dict(loss: SpreadLoss) -> dict[str, Any]:
    """A loss as `--json` prints it."""
    return {
        "sharedLevels": loss.shared_levels,
        "nearLevels": loss.near_levels,
        "loss": loss.loss,
        "error": loss.error,
        "nodes": list(loss.nodes),
    }
