"""`malletrain reproduce`: the figures and tables of a paper's evaluation that can be computed from a trace."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.allocator.problem import CostModel
from malletrain.cli.output import hint_at_compiler
from malletrain.cli.progress import progress_bar
from malletrain.cli.replay import (
    JobsOption,
    NodesOption,
    OutOption,
    ScalingOption,
    TraceOption,
    check_extent,
    jobs_of,
    make_folder,
    require_plots,
)
from malletrain.cli.reproduce_bbsched import BATCH_JOBS, BATCH_SEEDS, reproduce_bbsched
from malletrain.cli.reproduce_fleet import NOISE_SEEDS, reproduce_fleet
from malletrain.cli.reproduce_malletrain import JOB_SAMPLES, SEEDS, reproduce_malletrain
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import Accounting, ReplayOptions
from malletrain.simulator.replay.presets import PRESETS

if TYPE_CHECKING:
    from malletrain.simulator.replay.evaluation import Evaluation, Scenario
    from malletrain.simulator.reproduce.experiments import Experiment, JobSets

PAPERS = ("bftrainer", "malletrain", "bbsched", "fleet")
_HOUR_S = 3600.0


def reproduce(
    out: Annotated[Path, OutOption],
    paper: Annotated[
        str, typer.Argument(help="Whose evaluation: bftrainer, malletrain, bbsched or fleet.")
    ] = "bftrainer",
    trace: Annotated[Path | None, TraceOption] = None,
    nodes: Annotated[int | None, NodesOption] = None,
    hours: Annotated[float | None, typer.Option(help="Only the first hours; default: the whole trace.")] = None,
    jobs: Annotated[list[str] | None, JobsOption] = None,
    scaling: Annotated[Path | None, ScalingOption] = None,
    accounting: Annotated[Accounting, typer.Option(help="When arrivals and ends count.")] = Accounting.PAPER,
    cost_model: Annotated[CostModel, typer.Option(help="Cost of rescaling, assumed and charged.")] = CostModel.PAPER,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; default: one for each core.")] = None,
    executor: Annotated[str, typer.Option(help="local, or dask://HOST:PORT of a Dask scheduler.")] = "local",
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of workloads of each kind, of draws of noise for fleet; default: 5, for bbsched 16.",
            show_default=False,
        ),
    ] = None,
    batch_jobs: Annotated[int, typer.Option(min=100, help="bbsched: jobs of each workload.")] = BATCH_JOBS,
    job_samples: Annotated[float, typer.Option(min=1, help="malletrain: samples of each job.")] = JOB_SAMPLES,
    real: Annotated[
        Path | None, typer.Option(help="malletrain: file with measurements of benchmarks/nas.py to add to the page.")
    ] = None,
) -> None:
    """Repeat a paper's evaluation: figures, tables and a page that compares the results with the published ones.

    --jobs may be given twice: a set with one model is used for HPO, one with several models for diverse jobs. A set
    that is not given is built in.
    """
    if paper not in PAPERS:
        raise InvalidInputError("PAPER", " or ".join(PAPERS), paper)
    if real is not None and paper != "malletrain":
        raise InvalidInputError("--real", "nothing but with PAPER malletrain", str(real))
    hint_at_compiler()
    cores = workers or len(os.sched_getaffinity(0))
    if paper == "bbsched":
        if trace is not None:
            raise InvalidInputError("--trace", "nothing with PAPER bbsched, whose workloads are generated", str(trace))
        written = reproduce_bbsched(out, seeds or BATCH_SEEDS, batch_jobs, executor, cores, typer.echo)
        typer.echo(f"open {written[0]}")
        return
    if paper == "fleet":
        idle = None if trace is None else _scenario(read_trace(trace), nodes, hours)
        written = reproduce_fleet(
            idle, trace.name if trace else "", out, seeds or NOISE_SEEDS, executor, cores, typer.echo
        )
        typer.echo(f"open {written[0]}")
        return
    if trace is None:
        raise InvalidInputError("--trace", f"the trace of idle nodes, with PAPER {paper}")
    if paper == "malletrain":
        scenario = _scenario(read_trace(trace), nodes, hours)
        written = reproduce_malletrain(scenario, trace.name, out, seeds or SEEDS, cores, job_samples, typer.echo, real)
        typer.echo(f"open {written[0]}")
        return
    require_plots()
    from malletrain.simulator.reproduce.executors import executor as executor_of

    started = time.perf_counter()
    execute = executor_of(executor, cores)
    job_sets, titles = _job_sets(jobs or [], scaling)
    whole = read_trace(trace)
    scenario = _scenario(whole, nodes, hours)
    options = ReplayOptions(duration_s=scenario.duration_s, accounting=accounting, cost_model=cost_model)
    make_folder(out)
    experiments = _experiments(job_sets, options)
    results: dict[str, Evaluation] = {}
    with progress_bar("replays", len(experiments), counts=True) as progress:
        for experiment, evaluation in zip(experiments, execute(scenario, experiments), strict=True):
            results[experiment.name] = evaluation
            progress(len(results))
    written = _write(results, whole, scenario, job_sets, options, [trace.name, *titles], out)
    typer.echo(f"{len(experiments)} replays in {time.perf_counter() - started:.1f} s; {len(written)} files in {out}")
    typer.echo(f"open {written[0]}")


def _job_sets(jobs: list[str], scaling: Path | None) -> tuple[JobSets, list[str]]:
    from malletrain.simulator.reproduce.experiments import JobSets

    found: dict[str, tuple[ReplayJob, ...]] = {}
    titles = []
    for name in jobs:
        workload, title = jobs_of(name, None if name in PRESETS else scaling)
        kind = "hpo" if len({job.model for job in workload}) == 1 else "mix"
        if kind in found:
            raise InvalidInputError("--jobs", "one set of one model and one of several at most", name)
        found[kind] = workload
        titles.append(title)
    for kind, preset in (("hpo", PRESETS[0]), ("mix", PRESETS[1])):
        if kind not in found:
            found[kind], title = jobs_of(preset, None)
            titles.append(title)
    return JobSets(found["hpo"], found["mix"]), titles


def _scenario(whole: Trace, nodes: int | None, hours: float | None) -> Scenario:
    from malletrain.simulator.replay.evaluation import Scenario

    duration_s = check_extent(whole, nodes, hours)
    return Scenario.of(window(whole, 0.0, duration_s, nodes), duration_s)


def _experiments(job_sets: JobSets, options: ReplayOptions) -> list[Experiment]:
    from malletrain.simulator.reproduce.experiments import all_experiments

    return all_experiments(job_sets, options)


def _write(
    results: dict[str, Evaluation],
    whole: Trace,
    scenario: Scenario,
    job_sets: JobSets,
    options: ReplayOptions,
    sources: list[str],
    out: Path,
) -> list[Path]:
    from malletrain.simulator.reproduce.hpo_exhibits import hpo_exhibits
    from malletrain.simulator.reproduce.mix_exhibits import mix_exhibits
    from malletrain.simulator.reproduce.report_writer import write_report
    from malletrain.simulator.reproduce.solve_exhibit import solve_exhibit
    from malletrain.simulator.reproduce.trace_exhibits import trace_exhibits

    exhibits = [
        *trace_exhibits(whole, scenario),
        solve_exhibit(job_sets.mix, random.Random(0)),
        *hpo_exhibits(results, scenario, job_sets, options.max_parallel),
        *mix_exhibits(results, job_sets),
    ]
    order = {"table-1": 0, "figure-1": 1, "figure-5": 2, "figure-6": 3}
    exhibits.sort(key=lambda exhibit: order.get(exhibit.name, 9))
    try:
        return write_report(exhibits, options, sources, out)
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
