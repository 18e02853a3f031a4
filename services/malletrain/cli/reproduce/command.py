"""`malletrain reproduce`: figures and tables of the evaluations of BFTrainer, MalleTrain, BBSched and FLEET."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from malletrain.allocator.problem.allocation_problem import CostModel
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
from malletrain.simulator.batch.generated import WorkloadRecipe, derive
from malletrain.simulator.replay.job_set import Workload
from malletrain.simulator.replay.options import Accounting, ReplayOptions
from malletrain.simulator.replay.presets import PRESETS

if TYPE_CHECKING:
    from malletrain.reproduce.bbsched.trials import SiteLog
    from malletrain.reproduce.bftrainer.experiments import JobSets
    from malletrain.reproduce.exhibits import Exhibit
    from malletrain.reproduce.malletrain.systems import Score
    from malletrain.simulator.replay.evaluation import Evaluation, Scenario


PAPERS = ("bftrainer", "malletrain", "bbsched", "fleet")
_HOUR_S = 3600.0
BATCH_SEEDS, BATCH_JOBS = 16, 1000
NOISE_SEEDS = 5
ORDERS = 30
"""Random orders of the networks."""
SEEDS = 5
JOB_SAMPLES = 130e6
_UP_S, _DOWN_S, _VISIT_S = 18.0, 12.0, 5.0
_TRUTH_SEEDS = 3
_START_JOBS = 400
ResultT = TypeVar("ResultT")


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
        written = reproduce_bbsched(out, seeds or BATCH_SEEDS, batch_jobs, executor, cores, log)
        typer.echo(f"open {written[0]}")
        return
    if paper == "fleet":
        idle = None if trace is None else _scenario(read_trace(trace), nodes, hours)
        written = reproduce_fleet(idle, trace.name if trace else "", out, seeds or NOISE_SEEDS, executor, cores)
        typer.echo(f"open {written[0]}")
        return
    if trace is None:
        raise InvalidInputError("--trace", f"the trace of idle nodes, with PAPER {paper}")
    if paper == "malletrain":
        idle_log = read_trace(trace)
        scenario = _scenario(idle_log, nodes, hours)
        written = reproduce_malletrain(idle_log, scenario, trace.name, out, seeds or SEEDS, cores, job_samples, real)
        typer.echo(f"open {written[0]}")
        return
    require_plots()
    from malletrain.reproduce.bftrainer.experiments import all_experiments, perform
    from malletrain.reproduce.executors import spread

    started = time.perf_counter()
    job_sets, titles = _job_sets(jobs or [], scaling)
    whole = read_trace(trace)
    scenario = _scenario(whole, nodes, hours)
    options = ReplayOptions(duration_s=scenario.duration_s, accounting=accounting, cost_model=cost_model)
    experiments = all_experiments(job_sets, options)
    evaluations = spread(executor, cores, partial(perform, scenario), experiments)
    make_folder(out)
    shown = _show_progress("replays", len(experiments), evaluations)
    results = {experiment.name: evaluation for experiment, evaluation in zip(experiments, shown, strict=True)}
    written = _write(results, whole, scenario, job_sets, options, [trace.name, *titles], out)
    typer.echo(f"{len(experiments)} replays in {time.perf_counter() - started:.1f} s; {len(written)} files in {out}")
    typer.echo(f"open {written[0]}")


def _site_log(workload: Path, nodes: int | None, burst_buffer: int | None) -> SiteLog:
    require_plots()
    from malletrain.reproduce.bbsched.trials import SiteLog

    return SiteLog(workload, nodes, burst_buffer)


def _job_sets(jobs: list[str], scaling: Path | None) -> tuple[JobSets, list[str]]:
    from malletrain.reproduce.bftrainer.experiments import JobSets

    workloads: dict[str, Workload] = {}
    for name in jobs:
        workload = jobs_of(name, None if name in PRESETS else scaling)
        kind = "hpo" if len({job.model for job in workload.jobs}) == 1 else "mix"
        if kind in workloads:
            raise InvalidInputError("--jobs", "one set of one model and one of several at most", name)
        workloads[kind] = workload
    for kind, preset in (("hpo", PRESETS[0]), ("mix", PRESETS[1])):
        workloads.setdefault(kind, jobs_of(preset, None))
    return JobSets(workloads["hpo"], workloads["mix"]), [workload.title for workload in workloads.values()]


def _scenario(whole: Trace, nodes: int | None, hours: float | None) -> Scenario:
    from malletrain.simulator.replay.evaluation import Scenario

    duration_s = check_extent(whole, nodes, hours)
    return Scenario.of(window(whole, 0.0, duration_s, nodes), duration_s)


def _show_progress(name: str, total: int, results: Iterable[ResultT], every: int = 0) -> Iterator[ResultT]:
    """Results as they come, with a bar that moves by one with each.

    Args:
        name: What they are results of.
        total: How many there will be.
        results: The results.
        every: After how many results a line of text says how far it is; 0: none does.
    """
    with progress_bar(name, total, counts=True) as progress:
        for done, result in enumerate(results, 1):
            yield result
            progress(done)
            if every and (done % every == 0 or done == total):
                typer.echo(f"{done} of {total} {name}")


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
    from malletrain.reproduce.bftrainer.trace_exhibits import solve_exhibit, trace_exhibits
    from malletrain.reproduce.exhibits import write_report

    exhibits = [
        *trace_exhibits(whole, scenario),
        solve_exhibit(job_sets.mix.jobs, random.Random(0)),
        *hpo_exhibits(results, scenario, whole.origin, job_sets, options.max_parallel),
        *mix_exhibits(results, job_sets),
    ]
    order = {"table-1": 0, "figure-1": 1, "figure-5": 2, "figure-6": 3}
    exhibits.sort(key=lambda exhibit: order.get(exhibit.name, 9))
    return write_report(exhibits, options, sources, out)


def reproduce_bbsched(
    out: Path,
    seeds: int,
    jobs: int,
    executor: str,
    workers: int,
    log: SiteLog | None = None,
) -> list[Path]:
    """Simulate every method on generated workloads or on a log, and write tables, figures and a page.

    Args:
        out: Folder to write to; created if missing.
        seeds: Workloads of each kind.
        jobs: Jobs of each workload.
        executor: `local`, or `dask://HOST:PORT`.
        workers: Processes on this machine.
        log: Whose jobs to use in place of generated ones.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, the executor is not one, or the log has too few jobs, or the
            machine too little burst buffer.
    """
    require_plots()
    from malletrain.reproduce.bbsched.exhibits import exhibits_of
    from malletrain.reproduce.bbsched.searches import (
        distances,
        example,
        solve_statistics,
        solve_times,
        workloads,
    )
    from malletrain.reproduce.bbsched.trials import BatchPlan, BatchResults, run_trial
    from malletrain.reproduce.executors import spread
    from malletrain.reproduce.exhibits import write_report

    if log is not None:
        seeds = min(seeds, log.parts(jobs))
        if not seeds:
            raise InvalidInputError("--batch-jobs", f"at most as many jobs as {log.path} has", jobs)
        # What a recipe lacks is told before thousands of simulations.
        for recipe in WorkloadRecipe:
            derive(log.part(0, jobs), recipe, 0)
    plan = BatchPlan(seeds, jobs, log)
    trials = plan.trials()
    answers = spread(executor, workers, run_trial, trials)
    make_folder(out)
    shown = _show_progress("simulations", len(trials), answers, every=50)
    done = dict(zip(trials, shown, strict=True))
    exhibits = [
        example(),
        solve_times(time.perf_counter, random.Random(0)),
        distances(random.Random(1)),
        *([workloads(jobs)] if log is None else []),
        *exhibits_of(BatchResults(plan, done)),
        solve_statistics(time.perf_counter, jobs),
    ]
    sources = [f"{seeds} generated workloads of {jobs} jobs of each kind"]
    if log is not None:
        sources = [f"{log.path.name}: {seeds} parts of {jobs} jobs"]
    return write_report(exhibits, ReplayOptions(duration_s=1.0), sources, out, "bbsched.html")


def reproduce_fleet(
    scenario: Scenario | None,
    trace: str,
    out: Path,
    seeds: int,
    executor: str,
    workers: int,
) -> list[Path]:
    """Simulate the published ensemble in every way, and write tables, figures and a page.

    Args:
        scenario: Idle nodes on which the ensemble trains, too; None: there are none.
        trace: Name of their trace.
        out: Folder to write to; created if missing.
        seeds: Draws of noise on rates.
        executor: `local`, or `dask://HOST:PORT`.
        workers: Processes on this machine.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, or the executor is not one.
    """
    require_plots()
    from malletrain.reproduce.executors import spread
    from malletrain.reproduce.exhibits import write_report
    from malletrain.reproduce.fleet.exhibits import gap_exhibit, paper_exhibits, sweep_exhibits, trace_exhibit
    from malletrain.reproduce.fleet.networks import supplement_exhibits
    from malletrain.reproduce.fleet.trials import FleetPlanOfTrials, FleetResults, run_fleet_trial

    plan = FleetPlanOfTrials(ORDERS, seeds)
    trials = plan.trials()
    make_folder(out)
    answers = spread(executor, workers, run_fleet_trial, trials)
    done = dict(zip(trials, _show_progress("simulations", len(trials), answers, every=200), strict=True))
    results = FleetResults(plan, done)
    typer.echo("small ensembles beside the best possible")
    exhibits = [*paper_exhibits(results), *supplement_exhibits(), *sweep_exhibits(results), gap_exhibit()]
    sources = ["the published ensemble of 100 networks on 20 to 160 GPUs"]
    if scenario is not None:
        typer.echo(f"idle nodes of {trace}")
        exhibits.append(trace_exhibit(scenario))
        sources.append(f"idle nodes of {trace}")
    return write_report(exhibits, ReplayOptions(duration_s=1.0), sources, out, "fleet.html")


def reproduce_malletrain(
    whole: Trace,
    scenario: Scenario,
    source: str,
    out: Path,
    seeds: int,
    workers: int,
    samples: float,
    real: Path | None = None,
) -> list[Path]:
    """Replay the systems of the comparison, and write tables, figures and a page.

    Args:
        whole: The trace, whose gaps and fragments are counted.
        scenario: What of it is replayed.
        source: Name of the trace, for the page.
        out: Folder to write to; created if missing.
        seeds: Number of workloads of each kind.
        workers: Number of processes.
        samples: Samples of each job.
        real: File with measurements of `benchmarks/studies/nas.py`; None: there are none.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, or the file can't be read.
    """
    require_plots()
    import numpy as np

    from malletrain.allocator.solvers.solver_process import SolverProcess
    from malletrain.reproduce.executors import LOCAL, spread
    from malletrain.reproduce.exhibits import write_report
    from malletrain.reproduce.malletrain.exhibits import (
        ALLOCATORS,
        concurrent_times,
        fragments_exhibit,
        gaps_exhibit,
        lengths_exhibit,
        order_exhibit,
        scaling_exhibit,
        solver_exhibit,
        throughput_exhibit,
    )
    from malletrain.reproduce.malletrain.systems import Mix, System, Trial, WorkloadKind
    from malletrain.reproduce.malletrain.systems import score as run_trial

    measured = real_exhibits(real)
    make_folder(out)
    options = ReplayOptions(duration_s=scenario.duration_s)
    plan = [(workload, system, seed) for workload in WorkloadKind for seed in range(seeds) for system in System]
    scores: dict[tuple[WorkloadKind, System], list[Score]] = {}
    trials = [Trial(system, Mix(workload, seed, samples), options) for workload, system, seed in plan]
    answers = _show_progress("replays", len(trials), spread(LOCAL, workers, partial(run_trial, scenario), trials))
    for (workload, system, seed), score in zip(plan, answers, strict=True):
        scores.setdefault((workload, system), []).append(score)
        typer.echo(f"{workload} seed {seed} {system}: {score.samples:.4g} samples, {score.profiles} profiles")
    exhibits = [
        throughput_exhibit(scores, scenario.duration_s / 3600.0, samples),
        *measured,
        *filter(None, (fragments_exhibit(scenario), gaps_exhibit(whole, random.Random(0)))),
        lengths_exhibit(whole, np.random.default_rng(0)),
        scaling_exhibit(),
        order_exhibit(_UP_S, _DOWN_S, _VISIT_S),
        _starts(scenario, samples, workers),
        _truths(),
        solver_exhibit(concurrent_times(SolverProcess, ALLOCATORS, 3, 0), len(os.sched_getaffinity(0))),
    ]
    return write_report(exhibits, options, [source], out, "malletrain.html")


def real_exhibits(path: Path | None) -> list[Exhibit]:
    """Exhibits of a file with measurements of real trainings; none without a file.

    Raises:
        InvalidInputError: the file can't be read or has another format.
    """
    if path is None:
        return []
    from malletrain.reproduce.malletrain.real import evaluation_of, real_exhibit

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError("--real", f"a file that can be read ({error.strerror})", str(path)) from error
    return [real_exhibit(evaluation_of(content, f"--real {path.name}"))]


def _starts(scenario: Scenario, samples: float, workers: int) -> Exhibit:
    from malletrain.reproduce.executors import LOCAL, spread
    from malletrain.reproduce.malletrain.exhibits import (
        HOURS,
        MODES,
        START_SEEDS,
        StartTrial,
        start_exhibit,
        start_score,
    )
    from malletrain.reproduce.malletrain.systems import Mix, WorkloadKind

    first = scenario.until(min(scenario.duration_s, HOURS[-1] * 3600.0))
    options = ReplayOptions(duration_s=first.duration_s)
    trials = [
        StartTrial(mode, Mix(WorkloadKind.NAS, seed, samples, _START_JOBS), options)
        for mode in MODES
        for seed in range(START_SEEDS)
    ]
    scores = list(_show_progress("starts", len(trials), spread(LOCAL, workers, partial(start_score, first), trials)))
    typer.echo(f"profiles at the start: {START_SEEDS} seeds")
    return start_exhibit(scores[:START_SEEDS], scores[START_SEEDS:])


def _truths() -> Exhibit:
    from malletrain.profiler.machine.scale_selection import ScaleStrategy
    from malletrain.reproduce.malletrain.exhibits import truth_exhibit
    from malletrain.simulator.profiling.profile_accuracy import average_accuracy, profile_of, shapes_of
    from malletrain.simulator.replay.presets import MODELS, preset_jobs

    published = {job.model: job.curve for job in preset_jobs("imagenet", len(MODELS))}
    shapes = shapes_of(published)
    rows = []
    for spread in (0.05, 0.2):
        for shape, curve in shapes.items():
            profiles = [profile_of(shape, curve, spread, ScaleStrategy.ADAPTIVE, seed) for seed in range(_TRUTH_SEEDS)]
            rows.append(average_accuracy(profiles))
    typer.echo("profiles beside the truth")
    every = {s: profile_of(s, curve, 0.05, ScaleStrategy.EVERY, 0).node_seconds for s, curve in shapes.items()}
    return truth_exhibit(rows, every)
