"""FLEET's exhibits from simulations: times, speed-ups, flotillas, waiting and spread, ours beside the paper's."""

from __future__ import annotations

from malletrain.reproduce.exhibits import Cell, Exhibit, rounded
from malletrain.reproduce.fleet import published
from malletrain.reproduce.fleet.plan import FleetResults
from malletrain.reproduce.fleet.published import GPUS
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines

_ALL = (
    "random order",
    "longest first",
    "one after the other",
    "homogeneous",
    "fleet-local",
    "fleet, to the letter",
    "fleet",
    "makespan",
    "lower bound",
)
_OURS = "Ours is simulated with rates and epochs read off the paper's drawings, and Eq. 1 beyond eight GPUs."


def paper_exhibits(results: FleetResults) -> list[Exhibit]:
    """The exhibits of the paper, in its order, and all ways to divide GPUs beside the bound."""
    return [
        _times(results),
        _everything(results),
        _spread(results),
        _speedups(results),
        _over_others(results),
        _waiting(results),
    ]


def _times(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for gpus, seconds, flotillas in zip(GPUS, published.FLEET_SECONDS, published.FLOTILLAS, strict=True):
        letter, ours = results.of("fleet, to the letter", gpus), results.of("fleet", gpus)
        rows.append(
            (
                gpus,
                seconds,
                letter.seconds,
                100 * (letter.seconds / seconds - 1),
                ours.seconds,
                100 * (1 - ours.seconds / letter.seconds),
                flotillas,
                letter.flotillas,
                ours.flotillas,
            )
        )
    heads = (
        "GPUs",
        "published, s",
        "ours to the letter, s",
        "difference, %",
        "ours, s",
        "saved by avoiding what lies beyond the peak, %",
        "flotillas published",
        "to the letter",
        "ours",
    )
    return Exhibit(
        "table-4",
        "Table 4: time to train 100 networks with FLEET-G",
        heads,
        rounded(rows, 5),
        f"{_OURS} To the letter, members get GPUs beyond the number on which they are fastest; ours never does that.",
    )


def _everything(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = [(how, *(results.of(how, gpus).seconds for gpus in GPUS)) for how in _ALL]
    shown = ("random order", "longest first", "fleet", "makespan", "lower bound")
    return Exhibit(
        "times",
        "Time to train everything, in seconds, without a limit of preprocessing",
        ("how", *(f"{gpus} GPUs" for gpus in GPUS)),
        rounded(rows, 5),
        "The paper compares with one GPU each in random order only. Longest first needs no more than rates and "
        "epochs, and no schedule at all is faster than the bound. Makespan believes 24 epochs of every network, and "
        f"pays 30 s for each change. Random orders and homogeneous rounds are means of {results.plan.orders}.",
        lines(
            "Time to train everything",
            "GPUs",
            Axis("seconds", zero=True),
            {how: (GPUS, [results.of(how, gpus).seconds for gpus in GPUS]) for how in shown},
            published={"fleet": (GPUS, published.FLEET_SECONDS)},
        ),
    )


def _spread(results: FleetResults) -> Exhibit:
    ours = results.of("fleet, to the letter", 80).lengths
    rows: list[tuple[Cell, ...]] = [
        (f"FLEET-G, flotilla {number}", *theirs, *mine)
        for number, (theirs, mine) in enumerate(zip(published.FLOTILLA_LENGTHS, ours, strict=False), 1)
    ]
    local = results.of("fleet-local", 80).all_lengths or (None, None)
    rows.insert(0, ("FLEET-L, all", *published.RUN_LENGTHS["FLEET-L"], *local))
    return Exhibit(
        "table-3",
        "Table 3: run lengths at 80 GPUs",
        ("runs", "published mean, s", "published deviation, s", "ours, s", "our deviation, s"),
        rounded(rows),
        f"{_OURS} Networks of a flotilla end close together; the paper does not number its flotillas. "
        "On one GPU each it reports {:,.0f} ± {:,.0f} s.".format(*published.RUN_LENGTHS["one GPU each"]),
    )


def _speedups(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    ours = {"homogeneous": "homogeneous", "fleet-local": "fleet-local", "fleet": "fleet, to the letter"}
    for place, gpus in enumerate(GPUS):
        base = results.of("random order", gpus).seconds
        pairs = [(published.SPEEDUPS[name][place], base / results.of(how, gpus).seconds) for name, how in ours.items()]
        others = [base / results.of(how, gpus).seconds for how in ("fleet", "longest first", "makespan")]
        rows.append((gpus, *(value for pair in pairs for value in pair), *others))
    heads = ["GPUs"]
    for name in ours:
        heads += [f"{name}, published", f"{name}, to the letter"]
    return Exhibit(
        "figure-5",
        "Fig. 5: speed-up over one GPU each in random order",
        (*heads, "fleet, ours", "longest first", "makespan"),
        rounded(rows, 3),
        "Published: FLEET-G 1.12 to 1.92. The last three columns are ours alone: much of the speed-up over a random "
        f"order is also that of the order in which the longest come first. {_OURS}",
        lines(
            "Speed-up over one GPU each in random order",
            "GPUs",
            Axis("times as fast", zero=True),
            {
                label: (GPUS, [float(row[column] or 0) for row in rows])
                for label, column in {
                    "homogeneous": 2,
                    "fleet-local": 4,
                    "fleet, to the letter": 6,
                    "fleet, ours": 7,
                    "longest first": 8,
                    "makespan": 9,
                }.items()
            },
            published={how: (GPUS, published.SPEEDUPS[name]) for name, how in ours.items()},
        ),
    )


def _over_others(results: FleetResults) -> Exhibit:
    """What the paper does not show: the same times over baselines without luck."""
    bases, hows = ("longest first", "one after the other"), ("fleet, to the letter", "fleet", "fleet-local", "makespan")
    rows: list[tuple[Cell, ...]] = [
        (gpus, *(results.of(base, gpus).seconds / results.of(how, gpus).seconds for base in bases for how in hows))
        for gpus in GPUS
    ]
    return Exhibit(
        "figure-5-others",
        "Speed-up over longest first, and over one network after the other on all GPUs",
        ("GPUs", *(f"{how}, over {base}" for base in bases for how in hows)),
        rounded(rows, 3),
        "Ours alone. Below 1 the baseline is faster. One GPU each with the longest first needs no more than rates and "
        "epochs; one after the other each network has as many GPUs as it is fastest on. Preprocessing is no limit.",
        lines(
            "Speed-up over one GPU each, the longest first",
            "GPUs",
            Axis("times as fast", zero=True),
            {how: (GPUS, [float(row[1 + place] or 0) for row in rows]) for place, how in enumerate(hows)},
        ),
    )


def _waiting(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for place, gpus in enumerate(GPUS):
        theirs = (published.WAITING["homogeneous"][place], published.WAITING["fleet"][place])
        mine = [results.of(how, gpus).waiting for how in ("homogeneous", "fleet, to the letter", "fleet")]
        rows.append((gpus, theirs[0], mine[0], theirs[1], *mine[1:]))
    return Exhibit(
        "figure-6",
        "Fig. 6: waiting for each GPU",
        ("GPUs", "homogeneous, as drawn", "ours, s", "FLEET-G, as drawn", "ours to the letter, s", "ours, s"),
        rounded(rows, 3),
        "As drawn: the paper's axis fits its other figures only if it means hundreds of seconds. Ours counts networks "
        "that are done and wait for the end of their flotilla or round.",
    )
