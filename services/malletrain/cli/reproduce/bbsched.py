"""`malletrain reproduce bbsched`: BBSched's evaluation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.simulate.replay_output import make_folder, require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.recipes import WorkloadRecipe, derive
from malletrain.simulator.replay.options import ReplayOptions

if TYPE_CHECKING:
    from malletrain.reproduce.bbsched.trials import SiteLog

BATCH_SEEDS, BATCH_JOBS = 16, 1000


def reproduce_bbsched(
    out: Path,
    seeds: int,
    jobs: int,
    executor: str,
    workers: int,
    print_line: Callable[[str], None],
    log: SiteLog | None = None,
) -> list[Path]:
    """Simulate every method on generated workloads or on a log, and write tables, figures and a page.

    Args:
        out: Folder to write to; created if missing.
        seeds: Workloads of each kind.
        jobs: Jobs of each workload.
        executor: `local`, or `dask://HOST:PORT`.
        workers: Processes on this machine.
        print_line: Called with a line of text now and then.
        log: Whose jobs to use in place of generated ones.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, the executor is not one, or the log has too few jobs, or the
            machine too little burst buffer.
    """
    require_plots()
    from malletrain.reproduce.bbsched.exhibits import exhibits_of
    from malletrain.reproduce.bbsched.plan import BatchPlan, BatchResults
    from malletrain.reproduce.bbsched.searches import (
        distances,
        example,
        solve_statistics,
        solve_times,
        workloads,
    )
    from malletrain.reproduce.bbsched.trials import run_trial
    from malletrain.reproduce.executors import spread
    from malletrain.reproduce.report_writer import write_report

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
        *([workloads(jobs)] if log is None else []),
        *exhibits_of(BatchResults(plan, found)),
        solve_statistics(time.perf_counter, jobs),
    ]
    sources = [f"{seeds} generated workloads of {jobs} jobs of each kind"]
    if log is not None:
        sources = [f"{log.path.name}: {seeds} parts of {jobs} jobs"]
    try:
        return write_report(exhibits, ReplayOptions(duration_s=1.0), sources, out, "bbsched.html")
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
