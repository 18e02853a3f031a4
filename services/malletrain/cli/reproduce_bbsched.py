"""`malletrain reproduce bbsched`: BBSched's evaluation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from malletrain.cli.progress import progress_bar
from malletrain.cli.replay import make_folder, require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import ReplayOptions

BATCH_SEEDS, BATCH_JOBS = 16, 1000


def reproduce_bbsched(
    out: Path, seeds: int, jobs: int, executor: str, workers: int, print_line: Callable[[str], None]
) -> list[Path]:
    """Simulate every method on generated workloads, and write tables, figures and a page.

    Args:
        out: Folder to write to; created if missing.
        seeds: Workloads of each kind.
        jobs: Jobs of each workload.
        executor: `local`, or `dask://HOST:PORT`.
        workers: Processes on this machine.
        print_line: Called with a line of text now and then.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, or the executor is not one.
    """
    require_plots()
    from malletrain.simulator.reproduce.bbsched_exhibits import exhibits_of
    from malletrain.simulator.reproduce.bbsched_plan import BatchPlan, BatchResults
    from malletrain.simulator.reproduce.bbsched_searches import (
        distances,
        example,
        solve_statistics,
        solve_times,
        workloads,
    )
    from malletrain.simulator.reproduce.bbsched_trials import run_trial
    from malletrain.simulator.reproduce.executors import spread
    from malletrain.simulator.reproduce.report_writer import write_report

    plan = BatchPlan(seeds, jobs)
    trials = plan.trials()
    answers = spread(executor, workers, run_trial, trials)
    make_folder(out)
    found = {}
    with progress_bar("simulations", len(trials), counts=True) as progress:
        for trial, answer in zip(trials, answers, strict=True):
            found[trial] = answer
            progress(len(found))
            if len(found) % 50 == 0 or len(found) == len(trials):
                print_line(f"{len(found)} of {len(trials)} simulations")
    exhibits = [
        example(),
        solve_times(time.perf_counter, random.Random(0)),
        distances(random.Random(1)),
        workloads(jobs),
        *exhibits_of(BatchResults(plan, found)),
        solve_statistics(time.perf_counter, jobs),
    ]
    sources = [f"{seeds} generated workloads of {jobs} jobs of each kind"]
    try:
        return write_report(exhibits, ReplayOptions(duration_s=1.0), sources, out, "bbsched.html")
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
