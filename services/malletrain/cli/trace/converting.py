"""`malletrain trace convert`: converts logs into traces."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.progress import progress_bar
from malletrain.cli.trace.files import save_trace, summary
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_trace
from malletrain.scavenger.trace_metadata import read_metadata
from malletrain.simulator.batch.policies import PolicyName
from malletrain.simulator.traces.convert import convert_pbs, convert_polling, convert_sacct
from malletrain.simulator.traces.lines import size_of


class LogFormat(StrEnum):
    """Formats of logs."""

    POLLING = "polling"
    SACCT = "sacct"
    PBS = "pbs"
    SWF = "swf"
    FRAGMENTS = "fragments"


_OPTIONS = {
    LogFormat.POLLING: {"--nodes", "--debounce"},
    LogFormat.SACCT: {"--nodes", "--window", "--down"},
    LogFormat.PBS: {"--nodes", "--window", "--down"},
    LogFormat.SWF: {"--policy", "--nodes-count"},
    LogFormat.FRAGMENTS: set[str](),
}
_KEPT = ("system", "sampling_s", "source")


def convert(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="Logs by ascending time; *.gz, too.")],
    log_format: Annotated[
        LogFormat,
        typer.Option("--from", help="Polls of sinfo, `sacct -P`, PBS accounting, an SWF workload, or a trace."),
    ],
    out: Annotated[Path, typer.Option(help="Trace to write: NAME.csv, NAME.csv.gz or NAME.parquet; also NAME.json.")],
    nodes: Annotated[
        Path | None, typer.Option(help="File of all nodes: names, or `scontrol show node -o`. (polling, sacct, pbs)")
    ] = None,
    window: Annotated[
        tuple[str, str] | None, typer.Option(metavar="FROM TO", help="Begin and end of the trace. (sacct, pbs)")
    ] = None,
    down: Annotated[
        Path | None,
        typer.Option(help="Outages: CSV node,from,until, or `sacctmgr show event -P`. (sacct, pbs)"),
    ] = None,
    debounce: Annotated[
        int | None, typer.Option(min=0, help="Ignore idle periods seen in this many polls or fewer. (polling)")
    ] = None,
    policy: Annotated[PolicyName | None, typer.Option(help="Batch scheduler to simulate; default: easy. (swf)")] = None,
    nodes_count: Annotated[int | None, typer.Option(min=1, help="Nodes of the machine. (swf)")] = None,
) -> None:
    """Convert a log into a trace of idle nodes."""
    given = {
        "--nodes": nodes,
        "--window": window,
        "--down": down,
        "--debounce": debounce,
        "--policy": policy,
        "--nodes-count": nodes_count,
    }
    for name, value in given.items():
        if value is not None and name not in _OPTIONS[log_format]:
            raise InvalidInputError(name, f"no such option with --from {log_format}")
    about: dict[str, object] = {"source": f"{log_format}: {', '.join(path.name for path in inputs)}"}
    if log_format in (LogFormat.POLLING, LogFormat.SACCT, LogFormat.PBS):
        with progress_bar("read", size_of(inputs)) as progress:
            if log_format is LogFormat.POLLING:
                trace = convert_polling(inputs, nodes, debounce or 0, progress)
            elif log_format is LogFormat.SACCT:
                trace = convert_sacct(inputs, nodes, window, down, progress)
            else:
                trace = convert_pbs(inputs, nodes, window, down, progress)
    elif log_format is LogFormat.SWF:
        trace = _from_workload(_only(inputs), policy or PolicyName.EASY, nodes_count)
    else:
        path = _only(inputs)
        trace = read_trace(path)
        metadata = read_metadata(path)
        about = {key: metadata[key] for key in _KEPT if key in metadata}
    if not trace.fragments:
        raise InvalidInputError(str(inputs[0]), "at least one node that is idle at some time, got none")
    save_trace(trace, out, about)
    typer.echo(summary(trace, out))


def _only(inputs: Sequence[Path]) -> Path:
    if len(inputs) != 1:
        raise InvalidInputError("INPUT", "exactly one file", len(inputs))
    return inputs[0]


def _from_workload(path: Path, policy: PolicyName, nodes: int | None) -> Trace:
    # The batch simulator is large, and only this format needs it.
    from malletrain.simulator.batch.idle import idle_trace_of

    with progress_bar("jobs started", 1.0) as progress:
        return idle_trace_of(
            path, policy=policy.value, nodes=nodes, progress=lambda started, count: progress(started / max(1, count))
        )
