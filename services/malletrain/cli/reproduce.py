"""`malletrain reproduce`: every figure and table of BFTrainer's evaluation that a trace allows."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from malletrain.allocator.problem import CostModel
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
from malletrain.cli.reproduce_malletrain import JOB_SAMPLES, reproduce_malletrain
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.fragments import read_trace, window
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.options import Accounting, Options
from malletrain.simulator.replay.presets import PRESETS
from malletrain.simulator.replay.workload import TraceJob

if TYPE_CHECKING:
    from malletrain.simulator.replay.evaluation import Evaluated, Scene
    from malletrain.simulator.reproduce.experiments import Experiment, Workloads

PAPERS = ("bftrainer", "malletrain")
_HOUR_S = 3600.0


def reproduce(
    trace: Annotated[Path, TraceOption],
    out: Annotated[Path, OutOption],
    paper: Annotated[str, typer.Argument(help="Whose evaluation: bftrainer or malletrain.")] = "bftrainer",
    nodes: Annotated[int | None, NodesOption] = None,
    hours: Annotated[float | None, typer.Option(help="Only the first hours; default: the whole trace.")] = None,
    jobs: Annotated[list[str] | None, JobsOption] = None,
    scaling: Annotated[Path | None, ScalingOption] = None,
    accounting: Annotated[Accounting, typer.Option(help="When jobs arrive and end.")] = Accounting.PAPER,
    cost_model: Annotated[
        CostModel, typer.Option(help="What rescaling costs, believed and charged.")
    ] = CostModel.PAPER,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")] = None,
    executor: Annotated[str, typer.Option(help="local, or dask://HOST:PORT of a Dask scheduler.")] = "local",
    seeds: Annotated[int, typer.Option(min=1, help="malletrain: workloads of each kind.")] = 5,
    job_samples: Annotated[float, typer.Option(min=1, help="malletrain: samples of each job.")] = JOB_SAMPLES,
    real: Annotated[
        Path | None, typer.Option(help="malletrain: what benchmarks/nas.py has measured, to show on the page as well.")
    ] = None,
) -> None:
    """Run a paper's evaluation again: figures, tables and a page, ours beside the published numbers.

    --jobs may be given twice: a set of one model stands for HPO, one of several for diverse jobs. Which is not given is
    built in.
    """
    if paper not in PAPERS:
        raise InvalidInputError("PAPER", " or ".join(PAPERS), paper)
    if real is not None and paper != "malletrain":
        raise InvalidInputError("--real", "nothing but with PAPER malletrain", str(real))
    if paper == "malletrain":
        scene, cores = _scene(read_trace(trace), nodes, hours), workers or len(os.sched_getaffinity(0))
        written = reproduce_malletrain(scene, trace.name, out, seeds, cores, job_samples, typer.echo, real)
        typer.echo(f"open {written[0]}")
        return
    require_plots()
    from malletrain.simulator.reproduce.executors import executor as executor_of

    started = time.perf_counter()
    execute = executor_of(executor, workers or len(os.sched_getaffinity(0)))
    workloads, titles = _workloads(jobs or [], scaling)
    whole = read_trace(trace)
    scene = _scene(whole, nodes, hours)
    options = Options(duration_s=scene.duration_s, accounting=accounting, cost_model=cost_model)
    make_folder(out)
    experiments = _experiments(workloads, options)
    results: dict[str, Evaluated] = {}
    console = Console(stderr=True)
    columns = (TextColumn("replays"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replays", total=len(experiments))
        for experiment, evaluated in zip(experiments, execute(scene, experiments), strict=True):
            results[experiment.name] = evaluated
            progress.advance(task)
    written = _write(results, whole, scene, workloads, options, [trace.name, *titles], out)
    typer.echo(f"{len(experiments)} replays in {time.perf_counter() - started:.1f} s; {len(written)} files in {out}")
    typer.echo(f"open {written[0]}")


def _workloads(jobs: list[str], scaling: Path | None) -> tuple[Workloads, list[str]]:
    from malletrain.simulator.reproduce.experiments import Workloads

    found: dict[str, tuple[TraceJob, ...]] = {}
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
    return Workloads(found["hpo"], found["mix"]), titles


def _scene(whole: Trace, nodes: int | None, hours: float | None) -> Scene:
    from malletrain.simulator.replay.evaluation import Scene

    duration_s = check_extent(whole, nodes, hours)
    return Scene.of(window(whole, 0.0, duration_s, nodes), duration_s)


def _experiments(workloads: Workloads, options: Options) -> list[Experiment]:
    from malletrain.simulator.reproduce.experiments import all_experiments

    return all_experiments(workloads, options)


def _write(
    results: dict[str, Evaluated],
    whole: Trace,
    scene: Scene,
    workloads: Workloads,
    options: Options,
    sources: list[str],
    out: Path,
) -> list[Path]:
    from malletrain.simulator.reproduce.book import write_book
    from malletrain.simulator.reproduce.hpo_exhibits import hpo_exhibits
    from malletrain.simulator.reproduce.mix_exhibits import mix_exhibits
    from malletrain.simulator.reproduce.solve_exhibit import solve_exhibit
    from malletrain.simulator.reproduce.trace_exhibits import trace_exhibits

    exhibits = [
        *trace_exhibits(whole, scene),
        solve_exhibit(workloads.mix, random.Random(0)),
        *hpo_exhibits(results, scene, workloads, options.max_parallel),
        *mix_exhibits(results, workloads),
    ]
    order = {"table-1": 0, "figure-1": 1, "figure-5": 2, "figure-6": 3}
    exhibits.sort(key=lambda exhibit: order.get(exhibit.name, 9))
    try:
        return write_book(exhibits, options, sources, out)
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
