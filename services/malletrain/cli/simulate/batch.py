"""`malletrain batch`: simulates a batch scheduler on a job log, and writes the idle nodes that it leaves."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from malletrain.cli.shared.output import JsonOption, duration, hint_at_compiler, print_json, print_table
from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.simulate.batch_selection import (
    ADAPTIVE,
    ALL,
    NONE,
    SELECT_CHOICES,
    check_comparison,
    method_of,
    method_rows,
    method_summary,
    print_comparison,
    spec_of,
    trade_off_of,
    without_times,
    write_comparison,
)
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import write_trace
from malletrain.selection.generations import GeneticParameters
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import MAX_JOBS
from malletrain.selection.rule import WasteReading
from malletrain.selection.select import SelectionSettings, SelectionSolver
from malletrain.simulator.batch.darshan import read_darshan, with_requests
from malletrain.simulator.batch.engine import Overrun
from malletrain.simulator.batch.generated import WorkloadRecipe, derive
from malletrain.simulator.batch.idle import Window, idle_trace
from malletrain.simulator.batch.policies import BatchPolicy, ReservedKinds, Starved, WindowSettings, policy_named
from malletrain.simulator.batch.running import all_settings, check_settings, machine_with, method_run, schedule_of
from malletrain.simulator.batch.schedule import SUFFIXES, Schedule, check_schedule_name, statistics_of, write_schedule
from malletrain.simulator.batch.usage import usage_of
from malletrain.simulator.batch.workload import BatchWorkload
from malletrain.simulator.batch.workload_files import read_any_workload, write_jobs
from malletrain.simulator.traces.row_counts import RowCounts

TABLE, DERIVE = "table", "derive"
_LONG_RUN_JOBS = 5000
"""With fewer jobs no progress is shown: the simulation is fast."""


class PolicyChoice(StrEnum):
    """Values of --policy."""

    FCFS = "fcfs"
    EASY = "easy"
    WFP = "wfp"
    BBSCHED = "bbsched"


def batch(
    workload: Annotated[
        Path,
        typer.Option(
            help="Job log: Standard Workload Format, `sacct`, or NAME.csv with NAME.json beside it; compressed or not."
        ),
    ],
    action: Annotated[
        str | None,
        typer.Argument(help="table: write the workload as a job table (--to). derive: write a variant (--recipe)."),
    ] = None,
    policy: Annotated[
        PolicyChoice,
        typer.Option(
            help="First come first served; the same with EASY backfilling; Argonne's WFP with backfilling; "
            "bbsched: --policy wfp --select bbsched."
        ),
    ] = PolicyChoice.EASY,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the machine; default: from the header.")] = None,
    processors_per_node: Annotated[
        int | None, typer.Option(min=1, help="Turns the log's processors into nodes; default: from the header, else 1.")
    ] = None,
    overrun: Annotated[
        Overrun, typer.Option(help="Jobs that exceed their estimate: kill them, or let them run.")
    ] = Overrun.KILL,
    skip_too_large: Annotated[
        bool, typer.Option("--skip-too-large", help="Leave out jobs that ask for more than the machine has.")
    ] = False,
    burst_buffer: Annotated[
        int | None, typer.Option(min=0, help="Shared burst buffer of the machine in GB; default: from the workload.")
    ] = None,
    ssd: Annotated[
        str | None,
        typer.Option(help="Local SSDs as GB:NODES,GB:NODES (128:2196,256:2196); default: from the workload."),
    ] = None,
    select: Annotated[
        str,
        typer.Option(metavar="|".join(SELECT_CHOICES), help="How jobs are selected from the window."),
    ] = NONE,
    solver: Annotated[
        SelectionSolver,
        typer.Option(help="Exact search, the paper's genetic algorithm, or exact until it is too long."),
    ] = SelectionSolver.AUTO,
    generations: Annotated[int, typer.Option(min=0, help="Generations of the genetic algorithm.")] = 500,
    population: Annotated[int, typer.Option(min=2, help="Chromosomes of the genetic algorithm.")] = 20,
    mutation: Annotated[float, typer.Option(min=0, max=1, help="Probability that a gene mutates.")] = 0.0005,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the genetic algorithm, or of derive.")] = 0,
    most_visits: Annotated[
        int, typer.Option(min=1, help="Selections that one exact search may visit; beyond that, auto goes genetic.")
    ] = SelectionSettings().most_visits,
    selection_window: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Jobs of the window.")] = 20,
    selection_window_most: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_JOBS,
            help="Let the window grow to so many jobs with the queue: a quarter of those that wait.",
        ),
    ] = None,
    starvation_bound: Annotated[int, typer.Option(min=1, help="Passes that a job may stay in the window.")] = 50,
    starved: Annotated[
        Starved, typer.Option(help="A job past the bound starts as soon as it fits, or also gets a reservation.")
    ] = Starved.FORCE,
    trade_off: Annotated[
        str | None,
        typer.Option(
            help="bbsched: gain in burst buffer that outweighs a loss of nodes; default: 2, with SSDs 4. adaptive: by"
            " what waiting jobs ask for."
        ),
    ] = None,
    waste: Annotated[
        WasteReading,
        typer.Option(help="bbsched with SSDs: less waste is a percentage of the first choice's, or of all SSD."),
    ] = WasteReading.FIRST_CHOICE,
    reserve: Annotated[ReservedKinds, typer.Option(help="What reservations look at.")] = ReservedKinds.ALL,
    backfill_depth: Annotated[
        int | None, typer.Option(min=1, help="How many jobs of the queue backfilling looks at; default: all.")
    ] = None,
    measure: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Seconds FROM and UNTIL between which to measure; default: from the workload, or all submissions."
        ),
    ] = None,
    darshan: Annotated[
        Path | None,
        typer.Option(
            help="Burst buffer requests from what jobs moved: an output of `darshan-parser`, or a folder of NAME.txt."
        ),
    ] = None,
    recipe: Annotated[WorkloadRecipe | None, typer.Option(help="derive: which requests are drawn.")] = None,
    to: Annotated[Path | None, typer.Option(help="table, derive: NAME.csv to write, with NAME.json beside it.")] = None,
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
    if policy is PolicyChoice.BBSCHED:
        if select not in (NONE, SelectionMethod.BBSCHED):
            raise InvalidInputError("--select", "nothing else with --policy bbsched", select)
        policy, select = PolicyChoice.WFP, SelectionMethod.BBSCHED.value
    _check_action(action, recipe, to)
    _check_names(schedule, trace)
    genetic = GeneticParameters(population, generations, mutation, seed)
    adaptive = trade_off == ADAPTIVE
    method, factor = method_of(select), None if adaptive else trade_off_of(trade_off)
    selection = None if method is None else SelectionSettings(method, solver, factor, most_visits, genetic, waste)
    settings = WindowSettings(
        *(selection, selection_window, starvation_bound, starved, reserve, backfill_depth),
        most_window=selection_window_most,
        adaptive=adaptive,
    )
    if select == ALL:
        check_comparison(out, lambda: [name for name, path in (("--schedule", schedule), ("--trace", trace)) if path])
    spec = spec_of(nodes, burst_buffer, ssd, measure)
    rows = RowCounts(option="")
    jobs = read_any_workload(
        workload, spec=spec, processors_per_node=processors_per_node, skip_too_large=skip_too_large, counts=rows
    )
    for sentence in rows.sentences():
        typer.echo(sentence, err=True)
    if darshan is not None:
        jobs = _with_darshan(jobs, darshan, skip_too_large=skip_too_large)
    if action == TABLE and to is not None:
        _write(jobs, to, "")
        return
    check_settings(jobs, settings)
    if recipe is not None and to is not None:
        _derive(jobs, recipe, seed, to)
        return
    order = policy_named(policy.value)
    if selection is not None:
        hint_at_compiler()
    if select == ALL:
        _compare(workload, jobs, order, settings, overrun, window, min_idle, out, as_json)
        return
    with progress_bar(
        "jobs started", len(jobs.jobs) if len(jobs.jobs) >= _LONG_RUN_JOBS else 0, counts=True
    ) as progress:
        done, counts = schedule_of(jobs, order, settings, overrun=overrun, progress=progress, clock=time.perf_counter)
    idle = idle_trace(done, window=window, min_idle_s=min_idle)
    summary = schedule_summary(jobs, done, idle)
    further: list[tuple[str, str]] = []
    if selection is not None or jobs.resources is not None or backfill_depth is not None:
        metrics = usage_of(done, machine_with(jobs), jobs.measured_s)
        summary["select"], summary["metrics"] = select, method_summary(metrics, counts)
        further = method_rows(metrics, counts)
    try:
        write_results(done, idle, summary, out, schedule, trace)
    except OSError as error:
        raise InvalidInputError("--out, --schedule, --trace", f"files that can be written ({error})") from error
    if as_json:
        print_json(summary)
    else:
        print_summary(workload, summary, further)


def _with_darshan(jobs: BatchWorkload, path: Path, *, skip_too_large: bool) -> BatchWorkload:
    joined = with_requests(jobs, read_darshan(path), skip_too_large=skip_too_large)
    counts = {
        "ask for burst buffer by Darshan": joined.asking,
        "moved less than 1 GB": joined.small,
        "would ask for more than the machine has, and are left out": joined.too_large,
        "have records, but are not in the workload": joined.unknown,
    }
    for what, count in counts.items():
        if count:
            typer.echo(f"{count:,} jobs {what}", err=True)
    return joined.workload


def _check_action(action: str | None, recipe: WorkloadRecipe | None, to: Path | None) -> None:
    if action not in (None, TABLE, DERIVE):
        raise InvalidInputError("ACTION", f"{TABLE}, {DERIVE}, or nothing", action)
    for name, value, actions in (("--recipe", recipe, (DERIVE,)), ("--to", to, (TABLE, DERIVE))):
        if (value is not None) != (action in actions):
            with_action = " or ".join(actions)
            expected = f"a value with {action}" if action in actions else f"nothing without {with_action}"
            raise InvalidInputError(name, expected, value)


def _derive(jobs: BatchWorkload, recipe: WorkloadRecipe, seed: int, to: Path) -> None:
    derived = derive(jobs, recipe, seed)
    asking = sum(job.burst_buffer_gb > 0 for job in derived.jobs)
    _write(derived, to, f", {asking} of them ask for burst buffer")


def _write(jobs: BatchWorkload, to: Path, more: str) -> None:
    try:
        write_jobs(jobs, to)
    except OSError as error:
        raise InvalidInputError("--to", f"a file that can be written ({error})", str(to)) from error
    typer.echo(f"wrote {to}: {len(jobs.jobs)} jobs on {jobs.nodes} nodes{more}")


def _compare(
    path: Path,
    jobs: BatchWorkload,
    order: BatchPolicy,
    settings: WindowSettings,
    overrun: Overrun,
    window: Window,
    min_idle: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run the baseline and every method, and show them side by side."""
    runs = [
        method_run(jobs, order, each, overrun=overrun, clock=time.perf_counter) for each in all_settings(jobs, settings)
    ]
    summary = {
        "policy": order.name.value,
        "nodes": jobs.nodes,
        "skipped": camel(asdict(jobs.skipped)),
        "methods": {run.name: method_summary(run.metrics, run.counts) for run in runs},
    }
    if out is not None:
        try:
            write_comparison(runs, summary, window, min_idle, out)
        except OSError as error:
            raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
    if as_json:
        print_json(summary)
    else:
        print_comparison(f"{path}: {order.name}", runs)


def _check_names(schedule: Path | None, trace: Path | None) -> None:
    if schedule is not None:
        check_schedule_name(schedule, "--schedule")
    if trace is None:
        return
    if not trace.name.endswith(SUFFIXES):
        raise InvalidInputError("--trace", f"a name that ends in {', '.join(SUFFIXES)}", str(trace))
    if not trace.parent.is_dir():
        raise InvalidInputError("--trace", "a file in a folder that exists", str(trace))


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
