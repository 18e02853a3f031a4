"""`malletrain trace convert`: converts logs into traces."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.trace.files import save_trace, summary
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_metadata, read_trace
from malletrain.simulator.batch.policies import PolicyName
from malletrain.simulator.traces.column_logs import FIELDS, ColumnNames, parse_columns
from malletrain.simulator.traces.convert import Conversion, ConversionOptions, convert_jobs, convert_polling
from malletrain.simulator.traces.lines import size_of
from malletrain.simulator.traces.placing import MAX_SLOTS
from malletrain.simulator.traces.row_counts import MAX_SKIPPED, RowCounts


class LogFormat(StrEnum):
    """Formats of logs."""

    POLLING = "polling"
    SACCT = "sacct"
    PBS = "pbs"
    LSF = "lsf"
    CSV = "csv"
    SWF = "swf"
    FRAGMENTS = "fragments"


_OF_LOGS = {"--nodes", "--strict", "--max-skipped", "--zone"}
_OF_JOBS = _OF_LOGS | {"--window", "--down", "--only-nodes"}
_OPTIONS = {
    LogFormat.POLLING: _OF_LOGS | {"--debounce"},
    LogFormat.SACCT: _OF_JOBS | {"--header"},
    LogFormat.PBS: _OF_JOBS,
    LogFormat.LSF: _OF_JOBS,
    LogFormat.CSV: _OF_JOBS | {"--column", "--nodes-count", "--slots-per-node"},
    LogFormat.SWF: {"--policy", "--nodes-count", "--strict", "--max-skipped"},
    LogFormat.FRAGMENTS: set[str](),
}
_KEPT = ("system", "sampling_s", "source", "conversion")


def convert(
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT...", help="Logs by ascending time, compressed or not.")
    ],
    log_format: Annotated[
        LogFormat,
        typer.Option("--from", help="Polls of sinfo, `sacct`, accounting of PBS or LSF, a table, SWF, or a trace."),
    ],
    out: Annotated[Path, typer.Option(help="Trace to write: NAME.csv, NAME.csv.gz or NAME.parquet; also NAME.json.")],
    nodes: Annotated[
        Path | None,
        typer.Option(help="All nodes: names, or `scontrol show node -o`. (polling, sacct, pbs, lsf, csv)"),
    ] = None,
    window: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FROM TO", help="Begin and end of the trace. (sacct, pbs, lsf, csv)"),
    ] = None,
    down: Annotated[
        Path | None,
        typer.Option(help="Outages: CSV node,from,until, or `sacctmgr show event -P`. (sacct, pbs, lsf, csv)"),
    ] = None,
    only_nodes: Annotated[
        str | None,
        typer.Option(metavar="HOSTLIST", help="Only these nodes, such as those of a partition. (sacct, pbs, lsf, csv)"),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Time zone of times without one, such as Europe/Berlin. (polling, sacct, pbs, lsf, csv)"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that can't be used. (all logs)")
    ] = False,
    max_skipped: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            metavar="PERCENT",
            help="Rows or node-hours that may be skipped; default: 1 %. (all logs)",
        ),
    ] = None,
    debounce: Annotated[
        int | None, typer.Option(min=0, help="Ignore idle periods seen in this many polls or fewer. (polling)")
    ] = None,
    header: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="Columns of `sacct -n`, as its -o takes them. (sacct)")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=NAME",
            help=f"Which column holds what; for each of {', '.join(FIELDS)} that there is. (csv)",
        ),
    ] = None,
    slots_per_node: Annotated[
        int | None, typer.Option(min=1, max=MAX_SLOTS, help="Slots of each node, where jobs have slots. (csv)")
    ] = None,
    policy: Annotated[PolicyName | None, typer.Option(help="Batch scheduler to simulate; default: easy. (swf)")] = None,
    nodes_count: Annotated[int | None, typer.Option(min=1, help="Nodes of the machine. (swf, csv)")] = None,
) -> None:
    """Convert a log into a trace of idle nodes."""
    own = {name: value for name, value in locals().items() if name not in ("inputs", "log_format", "out")}
    for name, value in own.items():
        option = f"--{name.replace('_', '-')}"
        if value is not None and value is not False and option not in _OPTIONS[log_format]:
            raise InvalidInputError(option, f"no such option with --from {log_format}")
    about: dict[str, object] = {"source": f"{log_format}: {', '.join(path.name for path in inputs)}"}
    notes: tuple[str, ...] = ()
    share = MAX_SKIPPED if max_skipped is None else max_skipped / 100
    if log_format is LogFormat.SWF:
        counts = RowCounts(strict=strict, max_skipped=share)
        trace = _from_workload(_only(inputs), policy or PolicyName.EASY, nodes_count, counts)
        notes, about["conversion"] = tuple(counts.sentences()), counts.metadata()
    elif log_format is LogFormat.FRAGMENTS:
        path = _only(inputs)
        trace = read_trace(path)
        metadata = read_metadata(path)
        about = {key: metadata[key] for key in _KEPT if key in metadata}
    else:
        options = ConversionOptions(
            nodes=nodes,
            window=window,
            down=down,
            only_nodes=only_nodes,
            zone=zone,
            strict=strict,
            max_skipped=share,
            header=header,
            columns=parse_columns(column or ()) if log_format is LogFormat.CSV else ColumnNames(),
            nodes_count=nodes_count,
            slots_per_node=slots_per_node,
        )
        converted = _from_log(log_format, inputs, options, debounce or 0)
        trace, notes = converted.trace, converted.notes
        about["conversion"] = converted.metadata
    if not trace.fragments:
        raise InvalidInputError(str(inputs[0]), "at least one node that is idle at some time, got none")
    save_trace(trace, out, about)
    for note in notes:
        typer.echo(note)
    typer.echo(summary(trace, out))


def _from_log(log_format: LogFormat, inputs: Sequence[Path], options: ConversionOptions, debounce: int) -> Conversion:
    with progress_bar("read", size_of(inputs)) as progress:
        if log_format is LogFormat.POLLING:
            return convert_polling(inputs, options, debounce, progress)
        return convert_jobs(log_format.value, inputs, options, progress)


def _only(inputs: Sequence[Path]) -> Path:
    if len(inputs) != 1:
        raise InvalidInputError("INPUT", "exactly one file", len(inputs))
    return inputs[0]


def _from_workload(path: Path, policy: PolicyName, nodes: int | None, counts: RowCounts) -> Trace:
    # The batch simulator is large, and only this format needs it.
    from malletrain.simulator.batch.idle import idle_trace_of

    with progress_bar("jobs started", 1.0) as progress:
        return idle_trace_of(
            path,
            policy=policy.value,
            nodes=nodes,
            counts=counts,
            progress=lambda started, count: progress(started / max(1, count)),
        )
