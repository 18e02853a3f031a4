"""`malletrain reproduce malletrain`: MalleTrain's evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.simulate.replay_output import make_folder, require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import ReplayOptions

if TYPE_CHECKING:
    from malletrain.reproduce.exhibits import Exhibit
    from malletrain.reproduce.malletrain.systems import Score, Trial
    from malletrain.simulator.replay.evaluation import Scenario

SEEDS = 5
JOB_SAMPLES = 130e6
_UP_S, _DOWN_S, _VISIT_S = 18.0, 12.0, 5.0
_TRUTH_SEEDS = 3
_START_JOBS = 400
TrialT = TypeVar("TrialT")
ScoreT = TypeVar("ScoreT")


def reproduce_malletrain(
    scenario: Scenario,
    source: str,
    out: Path,
    seeds: int,
    workers: int,
    samples: float,
    print_line: Callable[[str], None],
    real: Path | None = None,
) -> list[Path]:
    """Replay the systems of the comparison, and write tables, figures and a page.

    Args:
        scenario: Idle nodes and duration.
        source: Name of the trace, for the page.
        out: Folder to write to; created if missing.
        seeds: Number of workloads of each kind.
        workers: Number of processes.
        samples: Samples of each job.
        print_line: Called with a line of text after each replay.
        real: File with measurements of `benchmarks/studies/nas.py`; None: there are none.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, or the file can't be read.
    """
    require_plots()
    from malletrain.allocator.solvers.solver_process import SolverProcess
    from malletrain.reproduce.malletrain.exhibits import order_exhibit, solver_exhibit, throughput_exhibit
    from malletrain.reproduce.malletrain.fragments_exhibit import fragments_exhibit
    from malletrain.reproduce.malletrain.scaling_exhibit import scaling_exhibit
    from malletrain.reproduce.malletrain.solvers import ALLOCATORS, concurrent_times
    from malletrain.reproduce.malletrain.systems import System, Trial
    from malletrain.reproduce.malletrain.workloads import Mix, WorkloadKind
    from malletrain.reproduce.report_writer import write_report

    measured = real_exhibits(real)
    make_folder(out)
    options = ReplayOptions(duration_s=scenario.duration_s)
    plan = [(workload, system, seed) for workload in WorkloadKind for seed in range(seeds) for system in System]
    scores: dict[tuple[WorkloadKind, System], list[Score]] = {}
    trials = [Trial(system, Mix(workload, seed, samples), options) for workload, system, seed in plan]
    with progress_bar("replays", len(trials), counts=True) as progress:
        answers = zip(plan, _scores(scenario, trials, workers), strict=True)
        for done, ((workload, system, seed), found) in enumerate(answers, 1):
            scores.setdefault((workload, system), []).append(found)
            progress(done)
            print_line(f"{workload} seed {seed} {system}: {found.samples:.4g} samples, {found.profiles} profiles")
    exhibits = [
        throughput_exhibit(scores, scenario.duration_s / 3600.0, samples),
        *measured,
        *filter(None, (fragments_exhibit(scenario),)),
        scaling_exhibit(),
        order_exhibit(_UP_S, _DOWN_S, _VISIT_S),
        _starts(scenario, samples, workers, print_line),
        _truths(print_line),
        solver_exhibit(concurrent_times(SolverProcess, ALLOCATORS, 3, 0), len(os.sched_getaffinity(0))),
    ]
    try:
        return write_report(exhibits, options, [source], out, "malletrain.html")
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error


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


def _scores(scenario: Scenario, trials: Sequence[Trial], workers: int) -> Iterator[Score]:
    from malletrain.reproduce.malletrain.systems import score

    yield from _each(partial(score, scenario), trials, workers)


def _each(work: Callable[[TrialT], ScoreT], trials: Sequence[TrialT], workers: int) -> Iterator[ScoreT]:
    if workers == 1:
        yield from map(work, trials)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, trials)


def _starts(scenario: Scenario, samples: float, workers: int, print_line: Callable[[str], None]) -> Exhibit:
    from malletrain.reproduce.malletrain.start_exhibit import (
        HOURS,
        MODES,
        START_SEEDS,
        StartTrial,
        start_exhibit,
        start_score,
    )
    from malletrain.reproduce.malletrain.workloads import Mix, WorkloadKind

    first = scenario.until(min(scenario.duration_s, HOURS[-1] * 3600.0))
    options = ReplayOptions(duration_s=first.duration_s)
    trials = [
        StartTrial(mode, Mix(WorkloadKind.NAS, seed, samples, _START_JOBS), options)
        for mode in MODES
        for seed in range(START_SEEDS)
    ]
    with progress_bar("starts", len(trials), counts=True) as progress:
        found = []
        for done, entry in enumerate(_each(partial(start_score, first), trials, workers), 1):
            found.append(entry)
            progress(done)
    print_line(f"profiles at the start: {START_SEEDS} seeds")
    return start_exhibit(found[:START_SEEDS], found[START_SEEDS:])


def _truths(print_line: Callable[[str], None]) -> Exhibit:
    from malletrain.profiler.machine.scale_selection import ScaleStrategy
    from malletrain.reproduce.malletrain.exhibits import truth_exhibit
    from malletrain.simulator.profiling.profile_accuracy import averaged, profile_of, shapes_of
    from malletrain.simulator.replay.presets import MODELS, preset_jobs

    published = {job.model: job.curve for job in preset_jobs("imagenet", len(MODELS))}
    shapes = shapes_of(published)
    rows = []
    for spread in (0.05, 0.2):
        for shape, curve in shapes.items():
            found = [profile_of(shape, curve, spread, ScaleStrategy.ADAPTIVE, seed) for seed in range(_TRUTH_SEEDS)]
            rows.append(averaged(found))
    print_line("profiles beside the truth")
    every = {s: profile_of(s, curve, 0.05, ScaleStrategy.EVERY, 0).node_seconds for s, curve in shapes.items()}
    return truth_exhibit(rows, every)
