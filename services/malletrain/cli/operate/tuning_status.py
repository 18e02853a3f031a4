"""How auto-tuning is shown: `malletrain tune --status`, and the line of `malletrain plan`."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import typer

from malletrain.cli.shared.configured import chosen_config
from malletrain.cli.shared.output import ago, print_json, print_table, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.v1 import allocator_pb2

_MODE = "TUNING_MODE_"
_EVENT = "TUNING_EVENT_"


def show_tuning(config: Path | None, *, as_json: bool) -> None:
    """What is in force, and what auto-tuning has done, the newest first."""
    with chosen_config(config), connect() as stubs:
        tuning = stubs.allocator.GetTuning(allocator_pb2.GetTuningRequest(), timeout=DEADLINE_SECONDS)
    if as_json:
        print_json(to_dict(tuning))
        return
    mode = allocator_pb2.TuningMode.Name(tuning.mode).removeprefix(_MODE).lower()
    typer.echo(f"auto_tune = {mode}, every {tuning.interval_seconds:g} s")
    typer.echo(f"T_fwd: {_in_words(tuning.in_force)}{' (on trial)' if tuning.on_trial else ''}")
    if tuning.why:
        typer.echo(f"configured: {_in_words(tuning.configured)}; {tuning.why}")
    rows = [
        (
            f"{ago(run.time, time.time())} ago",
            allocator_pb2.TuningEvent.Name(run.event).removeprefix(_EVENT).lower().replace("_", " "),
            run.reason,
        )
        for run in tuning.runs
    ]
    if rows:
        print_table(("when", "what", "why"), rows)


def tuning_line(stubs: ServiceStubs) -> str:
    """A line about T_fwd where it is not what is configured; empty where it is, or an older Allocator can't tell."""
    try:
        tuning = stubs.allocator.GetTuning(allocator_pb2.GetTuningRequest(), timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNIMPLEMENTED:
            raise
        return ""
    if not tuning.why:
        return ""
    trial = ", on trial" if tuning.on_trial else ""
    return f"T_fwd is tuned{trial} ({_in_words(tuning.configured)} is configured): {tuning.why}"


def _in_words(setting: allocator_pb2.ForwardSetting) -> str:
    return f"{setting.seconds:g} s" if setting.policy == "constant" else f"policy {setting.policy}"
