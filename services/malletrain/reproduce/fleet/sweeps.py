"""What FLEET is worth where other things are not as published: preprocessing, δ, α, noise, unknown epochs."""

from __future__ import annotations

from statistics import fmean

from malletrain.reproduce.exhibits import Cell, Exhibit, rounded
from malletrain.reproduce.fleet.plan import (
    NOISES,
    PREPROCESS,
    RIVALS,
    SHARES,
    SOME_GPUS,
    TOLERANCES,
    FleetResults,
    known_or_not,
)
from malletrain.reproduce.fleet.published import GPUS
from malletrain.reproduce.fleet.trials import FleetTrial
from malletrain.simulator.report.plots import lines

_HEADS = tuple(f"{gpus} GPUs" for gpus in SOME_GPUS)


def sweep_exhibits(results: FleetResults) -> list[Exhibit]:
    """The exhibits of all that is varied."""
    return [
        _preprocessing(results),
        _settings(results, "tolerance", "δ, samples/s", TOLERANCES),
        _settings(results, "active_share", "α", SHARES),
        _noise(results),
        _unknown(results),
    ]


def _preprocessing(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for how in (*RIVALS, "lower bound"):
        for rate in PREPROCESS:
            rows.append((rate, how, *results.seconds([FleetTrial(how, gpus, rate) for gpus in SOME_GPUS])))
    ahead = {
        f"{gpus} GPUs": (
            PREPROCESS,
            [
                results.one(FleetTrial("longest first", gpus, rate)).seconds
                / results.one(FleetTrial("fleet", gpus, rate)).seconds
                for rate in PREPROCESS
            ],
        )
        for gpus in SOME_GPUS
    }
    return Exhibit(
        "preprocessing",
        "Seconds to train everything, where all CPUs together preprocess so many samples/s for each GPU",
        ("samples/s per GPU", "how", *_HEADS),
        rounded(rows, 5),
        "Flotillas share preprocessing; with the others every network preprocesses for itself. The figure shows how "
        "many times as fast flotillas are as longest first: above 1 sharing pays. The networks ask for some 50 "
        "samples/s on one GPU each. The bound shares, too.",
        lines("Longest first over fleet", "samples/s per GPU that can be preprocessed", "times as fast", ahead),
    )


def _settings(results: FleetResults, field: str, title: str, values: tuple[float, ...]) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for value in values:
        trials = [FleetTrial("fleet", gpus, **{field: value}) for gpus in SOME_GPUS]  # type: ignore[arg-type]
        found = [results.one(trial) for trial in trials]
        rows.append((value, *(one.seconds for one in found), *(one.flotillas for one in found)))
    return Exhibit(
        field.replace("_", "-"),
        f"FLEET-G by {title}: seconds, and flotillas",
        (title, *_HEADS, *(f"flotillas, {head}" for head in _HEADS)),
        rounded(rows, 5),
        "Published: 20 samples/s and 0.8. The best value depends on the number of GPUs.",
    )


def _noise(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for how in RIVALS:
        for noise in NOISES:
            means = [fmean(results.seconds(results.plan.noisy(how, gpus, noise))) for gpus in SOME_GPUS]
            rows.append((how, f"{100 * noise:.0f} %", *means))
    return Exhibit(
        "noise",
        "Seconds to train everything, where measured rates are wrong",
        ("how", "deviation", *_HEADS),
        rounded(rows, 5),
        "Each measured rate is off by a factor with this standard deviation; members train at their true rates. "
        f"Means of {results.plan.seeds} draws.",
    )


def _unknown(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for how in RIVALS:
        for known in (True, False):
            trials = [known_or_not(how, gpus, known=known) for gpus in GPUS]
            rows.append((how, "known" if known else "24 believed of all", *results.seconds(trials)))
    return Exhibit(
        "epochs",
        "Seconds to train everything, where epochs are known and where they are not",
        ("how", "epochs", *(f"{gpus} GPUs" for gpus in GPUS)),
        rounded(rows, 5),
        "Flotillas do not ask for epochs. Longest first then knows rates only.",
    )
