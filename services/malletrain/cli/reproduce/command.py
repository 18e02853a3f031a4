"""`malletrain reproduce`: the figures and tables of a paper's evaluation that can be computed from a trace."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.cli.reproduce.bbsched import BATCH_JOBS, BATCH_SEEDS, reproduce_bbsched
from malletrain.cli.reproduce.fleet import NOISE_SEEDS, reproduce_fleet
from malletrain.cli.reproduce.malletrain import JOB_SAMPLES, SEEDS, reproduce_malletrain
from malletrain.cli.shared.output import hint_at_compiler
from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.simulate.replay import (
    JobsOption,
    NodesOption,
    OutOption,
    ScalingOption,
    TraceOption,
)
from malletrain.cli.simulate.replay_input import check_extent, jobs_of
from malletrain.cli.simulate.replay_output import make_folder, require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.job_set import Workload
from malletrain.simulator.replay.options import Accounting, ReplayOptions
from malletrain.simulator.replay.presets import PRESETS

if TYPE_CHECKING:
    from malletrain.reproduce.bbsched.trials import SiteLog
    from malletrain.reproduce.bftrainer.experiments import Experiment, JobSets
    from malletrain.simulator.replay.evaluation import Evaluation, Scenario

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
    workload: Annotated[
        Path | None,
        typer.Option(help="bbsched: your jobs in place of generated ones, as `malletrain batch` takes them."),
    ] = None,
    burst_buffer: Annotated[
        int | None, typer.Option(min=0, help="bbsched: burst buffer of your machine in GB; default: from the workload.")
    ] = None,
    job_samples: Annotated[float, typer.Option(min=1, help="malletrain: samples of each job.")] = JOB_SAMPLES,
    real: Annotated[
        Path | None,
        typer.Option(help="malletrain: file of benchmarks/studies/nas.py, whose measurements to add."),
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
    for name, value in (("--workload", workload), ("--burst-buffer", burst_buffer)):
        if value is not None and (paper != "bbsched" or workload is None):
            raise InvalidInputError(name, "nothing but with PAPER bbsched and --workload", str(value))
    hint_at_compiler()
    cores = workers or len(os.sched_getaffinity(0))
    if paper == "bbsched":
        if trace is not None:
            raise InvalidInputError("--trace", "nothing with PAPER bbsched, whose workloads are generated", str(trace))
        log = None if workload is None else _site_log(workload, nodes, burst_buffer)
        written = reproduce_bbsched(out, seeds or BATCH_SEEDS, batch_jobs, executor, cores, typer.echo, log)
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
    from malletrain.reproduce.executors import executor as executor_of

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


def _site_log(workload: Path, nodes: int | None, burst_buffer: int | None) -> SiteLog:
    require_plots()
    from malletrain.reproduce.bbsched.trials import SiteLog

    return SiteLog(workload, nodes, burst_buffer)


def _job_sets(jobs: list[str], scaling: Path | None) -> tuple[JobSets, list[str]]:
    from malletrain.reproduce.bftrainer.experiments import JobSets

    found: dict[str, Workload] = {}
    for name in jobs:
        workload = jobs_of(name, None if name in PRESETS else scaling)
        kind = "hpo" if len({job.model for job in workload.jobs}) == 1 else "mix"
        if kind in found:
            raise InvalidInputError("--jobs", "one set of one model and one of several at most", name)
        found[kind] = workload
    for kind, preset in (("hpo", PRESETS[0]), ("mix", PRESETS[1])):
        found.setdefault(kind, jobs_of(preset, None))
    return JobSets(found["hpo"], found["mix"]), [workload.title for workload in found.values()]


def _scenario(whole: Trace, nodes: int | None, hours: float | None) -> Scenario:
    from malletrain.simulator.replay.evaluation import Scenario

    duration_s = check_extent(whole, nodes, hours)
    return Scenario.of(window(whole, 0.0, duration_s, nodes), duration_s)


def _experiments(job_sets: JobSets, options: ReplayOptions) -> list[Experiment]:
    from malletrain.reproduce.bftrainer.experiments import all_experiments

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
    from malletrain.reproduce.bftrainer.hpo_exhibits import hpo_exhibits
    from malletrain.reproduce.bftrainer.mix_exhibits import mix_exhibits
    from malletrain.reproduce.bftrainer.solve_exhibit import solve_exhibit
    from malletrain.reproduce.bftrainer.trace_exhibits import trace_exhibits
    from malletrain.reproduce.report_writer import write_report

    exhibits = [
        *trace_exhibits(whole, scenario),
        solve_exhibit(job_sets.mix.jobs, random.Random(0)),
        *hpo_exhibits(results, scenario, whole.origin, job_sets, options.max_parallel),
        *mix_exhibits(results, job_sets),
    ]
    order = {"table-1": 0, "figure-1": 1, "figure-5": 2, "figure-6": 3}
    exhibits.sort(key=lambda exhibit: order.get(exhibit.name, 9))
    try:
        return write_report(exhibits, options, sources, out)
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
