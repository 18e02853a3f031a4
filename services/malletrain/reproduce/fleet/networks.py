"""FLEET's supplement, Fig. 1 to 3: the 100 networks that all its simulations train."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation, median

from malletrain.reproduce.exhibits import Exhibit, round_cells
from malletrain.reproduce.fleet.trials import CURVES, MEMBERS, published_problem
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import bars, lines

PROFILED = 8
"""The paper profiles up to twice the GPUs of a node, and no further (M_b)."""
_BINS = tuple(range(20, 180, 20))
_GPUS = tuple(range(1, PROFILED + 1))


def supplement_exhibits() -> list[Exhibit]:
    """The three figures, in order."""
    return [_single_gpu(), _by_size(), _profile_exhibit()]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, from -1 to 1: of the places that values have when sorted. Equal values share a mean place."""
    return correlation(_places(first), _places(second))


def _places(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(ordered)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def _single_gpu() -> Exhibit:
    rates = [rate for rate, _ in MEMBERS]
    counts = [sum(low <= rate < low + 20 for rate in rates) for low in _BINS]
    names = [f"{low} to {low + 20}" for low in _BINS]
    return Exhibit(
        "supplement-figure-1",
        "Supplement, Fig. 1: training rates on a single GPU",
        ("samples/s", "networks"),
        tuple(zip(names, counts, strict=True)),
        f"Published: from 21 to 176. The simulations' networks, read off the drawings: from {min(rates):.1f} to "
        f"{max(rates):.1f}, median {median(rates):.1f}.",
        bars("Training rates of 100 networks on one GPU", Axis("networks", zero=True), names, {"networks": counts}),
    )


def _by_size() -> Exhibit:
    rates = [rate for rate, _ in MEMBERS]
    epochs = [float(count) for _, count in MEMBERS]
    places = [float(place) for place in range(1, len(rates) + 1)]
    rows = [
        (f"{begin + 1} to {begin + 20}", median(rates[begin : begin + 20]), median(epochs[begin : begin + 20]))
        for begin in range(0, len(rates), 20)
    ]
    return Exhibit(
        "supplement-figure-2",
        "Supplement, Fig. 2: model size, training rate and epochs",
        ("networks, the smallest first", "samples/s, median", "epochs, median"),
        round_cells(rows),
        "Published: rates drop with size (232 MB to 1.19 GB); epochs have no clear correlation with it. The "
        "simulations' networks are in the order of their sizes: the rank correlation of size is "
        f"{rank_correlation(places, rates):+.2f} with rates and {rank_correlation(places, epochs):+.2f} with epochs.",
        lines(
            "Rates and epochs by size",
            "network, the smallest first",
            Axis("samples/s, or epochs", zero=True),
            {"samples/s": (places, rates), "epochs": (places, epochs)},
        ),
    )


def _profile_exhibit() -> Exhibit:
    curves = sorted(
        (model.rates[:PROFILED] for model in published_problem(PROFILED).models), key=lambda rates: rates[0]
    )
    drawn = {"slowest": curves[0], "median": curves[len(curves) // 2], "fastest": curves[-1]}
    rows = []
    for gpus in _GPUS:
        speedups = [curve[gpus - 1] / curve[0] for curve in curves]
        rates = (curve[gpus - 1] for curve in drawn.values())
        rows.append((gpus, *rates, min(speedups), median(speedups), max(speedups)))
    return Exhibit(
        "supplement-figure-3",
        "Supplement, Fig. 3: profiled rates of 100 networks",
        ("GPUs", *(f"{name}, samples/s" for name in drawn), "least speedup", "median", "largest"),
        round_cells(rows),
        f"The paper draws 100 curves. {len(CURVES)} of them could be read off; the others are between these, "
        "by their rate on one GPU (efficiency linear in its logarithm). The drawing is for ImageNet, these rates are "
        "for Caltech256.",
        lines(
            "Profiled rates",
            "GPUs",
            Axis("samples/s", zero=True),
            {name: ([float(gpus) for gpus in _GPUS], list(curve)) for name, curve in drawn.items()},
        ),
    )
