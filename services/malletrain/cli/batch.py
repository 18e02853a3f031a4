"""`malletrain batch`: simulates a batch scheduler on a job log, and writes the idle nodes that it leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from malletrain.cli.output import JsonOption, duration, print_json, print_table
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import write_trace
from malletrain.simulator.batch.engine import Overrun, simulate
from malletrain.simulator.batch.files import SUFFIXES, check_schedule_name, write_schedule
from malletrain.simulator.batch.idle import Window, idle_trace
from malletrain.simulator.batch.policies import PolicyName, policy_named
from malletrain.simulator.batch.schedule import Schedule, statistics_of
from malletrain.simulator.batch.workload import BatchWorkload, read_workload

_HOUR_S = 3600.0
_LONG_RUN_JOBS = 5000
"""With fewer jobs no progress is shown: the simulation is fast."""


def batch(
    workload: Annotated[Path, typer.Option(help="Job log in the Standard Workload Format, plain or gzip.")],
    policy: Annotated[
        PolicyName,
        typer.Option(help="First come first served; the same with EASY backfilling; Argonne's WFP with backfilling."),
    ] = PolicyName.EASY,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the machine; default: from the header.")] = None,
    processors_per_node: Annotated[
        int | None, typer.Option(min=1, help="Turns the log's processors into nodes; default: from the header, else 1.")
    ] = None,
    overrun: Annotated[
        Overrun, typer.Option(help="Jobs that exceed their estimate: kill them, or let them run.")
    ] = Overrun.KILL,
    skip_too_large: Annotated[
        bool, typer.Option("--skip-too-large", help="Leave out jobs larger than the machine.")
    ] = False,
    window: Annotated[
        Window, typer.Option(help="End of the idle trace: the last submission, or (all) the last end.")
    ] = Window.SUBMITS,
    min_idle: Annotated[float, typer.Option(help="Leave out shorter idle fragments, seconds.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for schedule.csv, idle.csv.gz (with idle.json) and summary.json.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="Where to write the schedule: NAME.csv, NAME.csv.gz or NAME.parquet.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Where to write the idle trace: NAME.csv, NAME.csv.gz or NAME.parquet; NAME.json beside it."),
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Simulate a batch scheduler on a job log, and write the idle nodes that it leaves."""
    if not 0 <= min_idle < math.inf:
        raise InvalidInputError("--min-idle", "seconds, at least 0", min_idle)
    _check_names(schedule, trace)
    jobs = read_workload(workload, nodes=nodes, processors_per_node=processors_per_node, skip_too_large=skip_too_large)
    with _progress(len(jobs.jobs)) as progress:
        done = simulate(jobs, policy_named(policy), overrun=overrun, progress=progress)
    idle = idle_trace(done, window=window, min_idle_s=min_idle)
    summary = _summary(jobs, done, idle)
    try:
        _write(done, idle, summary, out, schedule, trace)
    except OSError as error:
        raise InvalidInputError("--out, --schedule, --trace", f"files that can be written ({error})") from error
    if as_json:
        print_json(summary)
    else:
        _print(workload, summary)


def _check_names(schedule: Path | None, trace: Path | None) -> None:
    if schedule is not None:
        check_schedule_name(schedule, "--schedule")
    if trace is None:
        return
    if not trace.name.endswith(SUFFIXES):
        raise InvalidInputError("--trace", f"a name that ends in {', '.join(SUFFIXES)}", str(trace))
    if not trace.parent.is_dir():
        raise InvalidInputError("--trace", "a file in a folder that exists", str(trace))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """Show started jobs as a progress bar on standard error, if that is a terminal and the run is long."""
    console = Console(stderr=True)
    if not console.is_terminal or total < _LONG_RUN_JOBS:
        yield None
        return
    columns = (TextColumn("jobs started"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("jobs", total=total)
        yield lambda started: bar.update(task, completed=started)


def _summary(workload: BatchWorkload, schedule: Schedule, idle: Trace) -> dict[str, Any]:
    idle_s = math.fsum(fragment.length_s for fragment in idle.fragments)
    return {
        "policy": schedule.policy,
        "nodes": workload.nodes,
        "processorsPerNode": workload.processors_per_node,
        "firstSubmit": schedule.first_submit_at,
        "statistics": _camel(asdict(statistics_of(schedule))),
        "skipped": _camel(asdict(workload.skipped)),
        "idle": {
            "fragments": len(idle.fragments),
            "durationS": idle.duration_s,
            "nodeHours": idle_s / _HOUR_S,
            "share": idle_s / (idle.duration_s * workload.nodes),
        },
    }


def _camel(values: dict[str, Any]) -> dict[str, Any]:
    """Rename keys to the style of all JSON output: `meanWaitS`."""
    named = {}
    for key, value in values.items():
        first, *others = key.split("_")
        named[first + "".join(word.capitalize() for word in others)] = value
    return named


def _write(
    done: Schedule, idle: Trace, summary: dict[str, Any], out: Path | None, schedule: Path | None, trace: Path | None
) -> None:
    if (out or trace) and not idle.fragments:
        raise InvalidInputError("--trace", "a workload that leaves idle nodes (this one leaves none in the window)")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_schedule(done, out / "schedule.csv")
        write_trace(idle, out / "idle.csv.gz")
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if schedule is not None:
        write_schedule(done, schedule)
    if trace is not None:
        write_trace(idle, trace)


def _print(path: Path, summary: dict[str, Any]) -> None:
    numbers, idle = summary["statistics"], summary["idle"]
    skipped = ", ".join(f"{count} {_words(reason)}" for reason, count in summary["skipped"].items() if count)
    rows = [
        ("nodes", f"{summary['nodes']}"),
        ("processors per node", f"{summary['processorsPerNode']}"),
        ("first submission", summary["firstSubmit"] or "-"),
        ("jobs", f"{numbers['jobs']}, {numbers['killed']} of them killed at their estimate"),
        ("skipped", skipped or "none"),
        ("makespan", duration(numbers["makespanS"])),
        ("utilisation", f"{numbers['utilisation']:.1%}"),
        ("wait: mean", duration(numbers["meanWaitS"])),
        ("wait: median", duration(numbers["medianWaitS"])),
        ("wait: 95 %", duration(numbers["wait95S"])),
        ("bounded slowdown", f"{numbers['meanBoundedSlowdown']:.2f}"),
        ("idle fragments", f"{idle['fragments']} in {duration(idle['durationS'])}"),
        ("idle", f"{idle['nodeHours']:,.1f} node-hours ({idle['share']:.1%})"),
    ]
    print_table(("measure", "value"), rows, title=f"{path}: {summary['policy']}")


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
