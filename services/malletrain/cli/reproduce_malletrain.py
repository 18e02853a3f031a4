"""`malletrain reproduce malletrain`: MalleTrain's own evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.cli.replay import make_folder, require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import Options

if TYPE_CHECKING:
    from malletrain.simulator.replay.evaluation import Scene
    from malletrain.simulator.reproduce.exhibits import Exhibit
    from malletrain.simulator.reproduce.malletrain_systems import Score, Trial

JOB_SAMPLES = 130e6
_UP_S, _DOWN_S, _VISIT_S = 18.0, 12.0, 5.0
_TRUTH_SEEDS = 3


def reproduce_malletrain(
    scene: Scene,
    source: str,
    out: Path,
    seeds: int,
    workers: int,
    samples: float,
    said: Callable[[str], None],
    real: Path | None = None,
) -> list[Path]:
    """Replay, compare, and write tables, figures and a page.

    Args:
        scene: Where.
        source: The trace's name, for the page.
        out: Folder to write into; made if missing.
        seeds: Workloads of each kind.
        workers: Processes.
        samples: What each job has to process.
        said: Told what is done.
        real: What `benchmarks/nas.py` has measured, to be shown as well; None shows nothing of the kind.

    Raises:
        InvalidInputError: the folder can't be written, or the file can't be read.
    """
    require_plots()
    from malletrain.allocator.solver_process import SolverProcess
    from malletrain.simulator.reproduce.book import write_book
    from malletrain.simulator.reproduce.malletrain_exhibits import order_exhibit, solver_exhibit, throughput_exhibit
    from malletrain.simulator.reproduce.malletrain_solvers import ALLOCATORS, concurrent_times
    from malletrain.simulator.reproduce.malletrain_systems import System, Trial
    from malletrain.simulator.reproduce.malletrain_workloads import Mix, Workload

    measured = real_exhibits(real)
    make_folder(out)
    options = Options(duration_s=scene.duration_s)
    plan = [(workload, system, seed) for workload in Workload for seed in range(seeds) for system in System]
    scores: dict[tuple[Workload, System], list[Score]] = {}
    trials = [Trial(system, Mix(workload, seed, samples), options) for workload, system, seed in plan]
    for (workload, system, seed), found in zip(plan, _scores(scene, trials, workers), strict=True):
        scores.setdefault((workload, system), []).append(found)
        said(f"{workload} seed {seed} {system}: {found.samples:.4g} samples, {found.profiles} profiles")
    exhibits = [
        throughput_exhibit(scores, scene.duration_s / 3600.0, samples),
        *measured,
        order_exhibit(_UP_S, _DOWN_S, _VISIT_S),
        _truths(said),
        solver_exhibit(concurrent_times(SolverProcess, ALLOCATORS, 3, 0), len(os.sched_getaffinity(0))),
    ]
    try:
        return write_book(exhibits, options, [source], out, "malletrain.html")
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error


def real_exhibits(path: Path | None) -> list[Exhibit]:
    """What a file of real trainings has to show: nothing without one.

    Raises:
        InvalidInputError: it can't be read, or is no such file.
    """
    if path is None:
        return []
    from malletrain.simulator.reproduce.malletrain_real import evaluation_of, real_exhibit

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError("--real", f"a file that can be read ({error.strerror})", str(path)) from error
    return [real_exhibit(evaluation_of(content, f"--real {path.name}"))]


def _scores(scene: Scene, trials: Sequence[Trial], workers: int) -> Iterator[Score]:
    from malletrain.simulator.reproduce.malletrain_systems import score

    if workers == 1:
        yield from (score(scene, trial) for trial in trials)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(score, scene), trials)


def _truths(said: Callable[[str], None]) -> Exhibit:
    from malletrain.profiler.sizes import Strategy
    from malletrain.simulator.profiling.truths import averaged, profile_of, shapes_of
    from malletrain.simulator.replay.presets import MODELS, preset_jobs
    from malletrain.simulator.reproduce.malletrain_exhibits import truth_exhibit

    published = {job.model: job.curve for job in preset_jobs("imagenet", len(MODELS))}
    shapes = shapes_of(published)
    rows = []
    for spread in (0.05, 0.2):
        for shape, curve in shapes.items():
            found = [profile_of(shape, curve, spread, Strategy.ADAPTIVE, seed) for seed in range(_TRUTH_SEEDS)]
            rows.append(averaged(found))
    said("profiles beside the truth")
    every = {s: profile_of(s, curve, 0.05, Strategy.EVERY, 0).node_seconds for s, curve in shapes.items()}
    return truth_exhibit(rows, every)
