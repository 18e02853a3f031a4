"""What `malletrain batch` prints and writes of one schedule."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from malletrain.cli.shared.output import duration, print_table
from malletrain.cli.simulate.batch_selection import without_times
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import write_trace
from malletrain.simulator.batch.files import write_schedule
from malletrain.simulator.batch.schedule import Schedule, statistics_of
from malletrain.simulator.batch.workload import BatchWorkload

_HOUR_S = 3600.0


def schedule_summary(workload: BatchWorkload, schedule: Schedule, idle: Trace) -> dict[str, Any]:
    """What a schedule is like, for JSON."""
    idle_s = math.fsum(fragment.length_s for fragment in idle.fragments)
    return {
        "policy": schedule.policy,
        "nodes": workload.nodes,
        "processorsPerNode": workload.processors_per_node,
        "firstSubmit": schedule.first_submit_at,
        "statistics": camel(asdict(statistics_of(schedule))),
        "skipped": camel(asdict(workload.skipped)),
        "idle": {
            "fragments": len(idle.fragments),
            "durationS": idle.duration_s,
            "nodeHours": idle_s / _HOUR_S,
            "share": idle_s / (idle.duration_s * workload.nodes),
        },
    }


def camel(values: dict[str, Any]) -> dict[str, Any]:
    """Rename keys to the style of all JSON output: `meanWaitS`."""
    named = {}
    for key, value in values.items():
        first, *others = key.split("_")
        named[first + "".join(word.capitalize() for word in others)] = value
    return named


def write_results(
    done: Schedule, idle: Trace, summary: dict[str, Any], out: Path | None, schedule: Path | None, trace: Path | None
) -> None:
    """Write what was asked for.

    Raises:
        InvalidInputError: there is no idle node to write.
        OSError: a file can't be written.
    """
    if (out or trace) and not idle.fragments:
        raise InvalidInputError("--trace", "a workload that leaves idle nodes (this one leaves none in the window)")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_schedule(done, out / "schedule.csv")
        write_trace(idle, out / "idle.csv.gz")
        (out / "summary.json").write_text(json.dumps(without_times(summary), indent=2) + "\n", encoding="utf-8")
    if schedule is not None:
        write_schedule(done, schedule)
    if trace is not None:
        write_trace(idle, trace)


def print_summary(path: Path, summary: dict[str, Any], further: list[tuple[str, str]]) -> None:
    """Print a table for people."""
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
    title = f"{path}: {summary['policy']}"
    if "select" in summary:
        title += f", select {summary['select']}"
    print_table(("measure", "value"), [*rows, *further], title=title)


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
