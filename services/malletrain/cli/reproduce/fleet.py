"""`malletrain reproduce fleet`: FLEET's evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.simulate.replay_output import make_folder, require_plots
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import ReplayOptions

if TYPE_CHECKING:
    from malletrain.simulator.replay.evaluation import Scenario

NOISE_SEEDS = 5
ORDERS = 30
"""Random orders of the networks."""


def reproduce_fleet(
    scenario: Scenario | None,
    trace: str,
    out: Path,
    seeds: int,
    executor: str,
    workers: int,
    print_line: Callable[[str], None],
) -> list[Path]:
    """Simulate the published ensemble in every way, and write tables, figures and a page.

    Args:
        scenario: Idle nodes on which the ensemble trains, too; None: there are none.
        trace: Name of their trace.
        out: Folder to write to; created if missing.
        seeds: Draws of noise on rates.
        executor: `local`, or `dask://HOST:PORT`.
        workers: Processes on this machine.
        print_line: Called with a line of text now and then.

    Returns:
        The files that were written, the page first.

    Raises:
        InvalidInputError: the folder can't be written, or the executor is not one.
    """
    require_plots()
    from malletrain.reproduce.executors import spread
    from malletrain.reproduce.fleet.exhibits import paper_exhibits
    from malletrain.reproduce.fleet.gap import gap_exhibit
    from malletrain.reproduce.fleet.plan import FleetPlanOfTrials, FleetResults
    from malletrain.reproduce.fleet.sweeps import sweep_exhibits
    from malletrain.reproduce.fleet.trace import trace_exhibit
    from malletrain.reproduce.fleet.trials import run_fleet_trial
    from malletrain.reproduce.report_writer import write_report

    plan = FleetPlanOfTrials(ORDERS, seeds)
    trials = plan.trials()
    make_folder(out)
    found = {}
    with progress_bar("simulations", len(trials), counts=True) as progress:
        for trial, answer in zip(trials, spread(executor, workers, run_fleet_trial, trials), strict=True):
            found[trial] = answer
            progress(len(found))
            if len(found) % 200 == 0 or len(found) == len(trials):
                print_line(f"{len(found)} of {len(trials)} simulations")
    results = FleetResults(plan, found)
    print_line("small ensembles beside the best possible")
    exhibits = [*paper_exhibits(results), *sweep_exhibits(results), gap_exhibit()]
    sources = ["the published ensemble of 100 networks on 20 to 160 GPUs"]
    if scenario is not None:
        print_line(f"idle nodes of {trace}")
        exhibits.append(trace_exhibit(scenario))
        sources.append(f"idle nodes of {trace}")
    try:
        return write_report(exhibits, ReplayOptions(duration_s=1.0), sources, out, "fleet.html")
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
