"""What `malletrain batch` adds for burst buffer, SSD and selection: checked options, and methods side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from malletrain.cli.shared.output import duration, print_table
from malletrain.cli.simulate.replay_output import require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.trace_files import write_trace
from malletrain.selection.methods import SelectionMethod
from malletrain.simulator.batch.idle import Window, idle_trace
from malletrain.simulator.batch.machine import MachineSpec, check_measured, parse_ssd
from malletrain.simulator.batch.policies import SelectionCounts
from malletrain.simulator.batch.running import BASELINE, MethodRun
from malletrain.simulator.batch.schedule import write_schedule
from malletrain.simulator.batch.usage import UsageMetrics, kiviat, kiviat_area, kiviat_axes

_TIMES = ("meanSolveS", "solve99S", "worstSolveS")
_CLASSES = {
    "nodes": "waits_by_nodes",
    "burst buffer": "waits_by_burst_buffer",
    "run time": "waits_by_run",
}


NONE, ALL = "none", "all"
ADAPTIVE = "adaptive"
"""The value of --trade-off with which the factor follows the workload."""
SELECT_CHOICES = (NONE, *(method.value for method in SelectionMethod), ALL)
"""Values of --select."""


def method_of(choice: str) -> SelectionMethod | None:
    """The method that a value of --select names, None for none; of all, the one that the others are compared with.

    Raises:
        InvalidInputError: it is not one of SELECT_CHOICES.
    """
    if choice not in SELECT_CHOICES:
        raise InvalidInputError("--select", f"one of {', '.join(SELECT_CHOICES)}", choice)
    if choice == NONE:
        return None
    return SelectionMethod.BBSCHED if choice == ALL else SelectionMethod(choice)


def trade_off_of(text: str | None) -> Fraction | None:
    """The factor of BBSched's rule that --trade-off names.

    Raises:
        InvalidInputError: it is no number from 0 with at most three decimals.
    """
    if text is None:
        return None
    try:
        factor = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInputError(
            "--trade-off", "a number from 0 with at most three decimals, or adaptive", text
        ) from error
    if factor < 0 or factor.denominator > 1000:
        raise InvalidInputError("--trade-off", "a number from 0 with at most three decimals", text)
    return factor


def spec_of(
    nodes: int | None, burst_buffer: int | None, ssd: str | None, measure: tuple[float, float] | None
) -> MachineSpec:
    """The machine that options describe.

    Raises:
        InvalidInputError: the classes or the measured seconds are not valid.
    """
    return MachineSpec(
        nodes,
        burst_buffer,
        None if ssd is None else parse_ssd(ssd, "--ssd"),
        None if measure is None else check_measured(*measure, "--measure"),
    )


def method_summary(metrics: UsageMetrics, counts: SelectionCounts) -> dict[str, Any]:
    """What a method did, for JSON."""
    times = sorted(counts.solve_s)
    return {
        **{key: value for key, value in _camel(asdict(metrics)).items() if value is not None},
        "idle": _camel(asdict(metrics.idle)),
        "selections": {
            "forcedStarts": counts.forced_starts,
            "selectedStarts": counts.selected_starts,
            "lateStarts": counts.late_starts,
            "geneticAnswers": counts.genetic_answers,
            "solved": len(times),
            "meanSolveS": sum(times) / len(times) if times else 0.0,
            "solve99S": times[-(-99 * len(times) // 100) - 1] if times else 0.0,
            "worstSolveS": times[-1] if times else 0.0,
        },
    }


def without_times(summary: Any) -> Any:
    """The summary without the solve times, so that the same command writes the same bytes."""
    if not isinstance(summary, dict):
        return summary
    return {key: without_times(value) for key, value in summary.items() if key not in _TIMES}


def _camel(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key.split("_")[0] + "".join(word.capitalize() for word in key.split("_")[1:]): values[key] for key in values
    }


def method_rows(metrics: UsageMetrics, counts: SelectionCounts) -> list[tuple[str, str]]:
    """What a method did, for people."""
    summary = method_summary(metrics, counts)["selections"]
    rows = [
        ("measured jobs", f"{metrics.jobs}"),
        ("node usage", f"{metrics.node_usage:.2%}"),
        ("burst buffer usage", f"{metrics.burst_buffer_usage:.2%}"),
    ]
    if metrics.ssd_usage is not None and metrics.ssd_wasted is not None:
        rows.append(("SSD usage, wasted", f"{metrics.ssd_usage:.2%}, {metrics.ssd_wasted:.2%}"))
    rows += [
        ("wait: mean, longest", f"{duration(metrics.mean_wait_s)}, {duration(metrics.max_wait_s)}"),
        ("slowdown, bounded", f"{metrics.mean_slowdown:.2f}, {metrics.mean_bounded_slowdown:.2f}"),
    ]
    for title, field in _CLASSES.items():
        waits: Mapping[str, float] = getattr(metrics, field)
        rows.append((f"wait by {title}", ", ".join(f"{name}: {duration(wait)}" for name, wait in waits.items())))
    rows.append(("idle node-hours by cause", _causes(metrics)))
    if summary["solved"]:
        times = [f"{1000 * summary[name]:.2f} ms" for name in ("meanSolveS", "solve99S", "worstSolveS")]
        rows += [
            ("starts: forced, selected", f"{summary['forcedStarts']}, {summary['selectedStarts']}"),
            ("selections", f"{summary['solved']}, {summary['geneticAnswers']} of them by the genetic algorithm"),
            ("time of one: mean, 99 %, worst", ", ".join(times)),
        ]
    return rows


def _causes(metrics: UsageMetrics) -> str:
    idle = metrics.idle
    parts = {
        "no job waiting": idle.no_job_waiting,
        "held for a reservation": idle.reservation,
        "only burst buffer lacking": idle.burst_buffer,
        "too few for any job": idle.too_few,
    }
    return ", ".join(f"{name}: {hours:,.0f}" for name, hours in parts.items())


def print_comparison(title: str, runs: list[MethodRun]) -> None:
    """One table with a row for each method, and one with the waits by class."""
    graphs = kiviat({run.name: run.metrics for run in runs})
    before_s = next(run.metrics.mean_wait_s for run in runs if run.name == BASELINE)
    heads = (
        "method",
        "nodes",
        "burst buffer",
        "wait",
        "against baseline",
        "longest",
        "slowdown",
        "idle: no job",
        "reservation",
        "burst buffer",
        "too few",
        "Kiviat area",
    )
    rows = []
    for run in runs:
        metrics, idle = run.metrics, run.metrics.idle
        change = f"{metrics.mean_wait_s / before_s - 1:+.1%}" if before_s else "-"
        rows.append(
            (
                run.name,
                f"{metrics.node_usage:.2%}",
                f"{metrics.burst_buffer_usage:.2%}",
                duration(metrics.mean_wait_s),
                change,
                duration(metrics.max_wait_s),
                f"{metrics.mean_slowdown:.2f}",
                f"{idle.no_job_waiting:,.0f}",
                f"{idle.reservation:,.0f}",
                f"{idle.burst_buffer:,.0f}",
                f"{idle.too_few:,.0f}",
                f"{kiviat_area(graphs[run.name]):.2f}",
            )
        )
    print_table(heads, rows, title=title)
    print_table(
        ("method", "starts: selected", "forced", "selections", "by the genetic algorithm", "mean", "99 %", "worst"),
        [(run.name, *_selections(run)) for run in runs if run.counts.solve_s],
    )
    columns, breakdown = breakdowns(runs)
    print_table(
        columns, [(*row[:2], *(duration(float(cell)) if cell else "-" for cell in row[2:])) for row in breakdown]
    )


def _selections(run: MethodRun) -> tuple[str, ...]:
    selections = method_summary(run.metrics, run.counts)["selections"]
    counts = (str(selections[name]) for name in ("selectedStarts", "forcedStarts", "solved", "geneticAnswers"))
    return (*counts, *(f"{1000 * selections[name]:.2f} ms" for name in _TIMES))


def breakdowns(runs: list[MethodRun]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Mean waits in seconds by class of job: a row for each class, a column for each method."""
    rows = []
    for title, field in _CLASSES.items():
        names = dict.fromkeys(name for run in runs for name in getattr(run.metrics, field))
        for name in names:
            waits = [getattr(run.metrics, field).get(name) for run in runs]
            rows.append((title, name, *("" if wait is None else f"{wait:.1f}" for wait in waits)))
    return ("class", "of", *(run.name for run in runs)), rows


def write_comparison(
    runs: list[MethodRun], summary: dict[str, Any], window: Window, min_idle_s: float, out: Path
) -> None:
    """Write a folder for each method, the tables, and the Kiviat figure.

    Raises:
        OSError: a file can't be written.
        InvalidInputError: a method leaves no idle nodes.
    """
    for run in runs:
        folder = out / run.name
        folder.mkdir(parents=True, exist_ok=True)
        write_schedule(run.schedule, folder / "schedule.csv")
        write_trace(idle_trace(run.schedule, window=window, min_idle_s=min_idle_s), folder / "idle.csv.gz")
    (out / "summary.json").write_text(json.dumps(without_times(summary), indent=2) + "\n", encoding="utf-8")
    columns, rows = breakdowns(runs)
    (out / "breakdowns.csv").write_text(_csv((columns, *rows)), encoding="utf-8")
    metrics = {run.name: run.metrics for run in runs}
    graphs, axes = kiviat(metrics), kiviat_axes(metrics)
    table = [
        (name, *(f"{value:.4f}" for value in values), f"{kiviat_area(values):.4f}") for name, values in graphs.items()
    ]
    (out / "kiviat.csv").write_text(_csv((("method", *axes, "area"), *table)), encoding="utf-8")
    from malletrain.simulator.report.plots import kiviat_chart

    (out / "kiviat.png").write_bytes(kiviat_chart("0: worst method, 1: best", axes, graphs).png())


def _csv(rows: tuple[tuple[str, ...], ...]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def check_comparison(out: Path | None, others: Callable[[], list[str]]) -> None:
    """Before the work: no options that need one schedule, and what draws figures.

    Raises:
        InvalidInputError: an option does not go with --select all, or the extra `sim` is missing.
    """
    options = others()
    if options:
        raise InvalidInputError(", ".join(options), "nothing with --select all, which writes a folder for each method")
    if out is not None:
        require_plots()
