"""MalleTrain's exhibits: Fig. 12, 6 and 8, and the accuracy of profiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from malletrain.profiler.machine.scale_selection import ScaleStrategy, candidate_scales
from malletrain.reproduce.exhibits import Cell, Exhibit, rounded
from malletrain.reproduce.malletrain.systems import GUESSES, Score, System
from malletrain.reproduce.malletrain.workloads import WorkloadKind
from malletrain.simulator.profiling.profile_accuracy import ProfileAccuracy
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import bars, lines

PUBLISHED_GAIN = 0.223
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
Scores = Mapping[tuple[WorkloadKind, System], Sequence[Score]]
"""One score per seed."""


def throughput_exhibit(scores: Scores, hours: float, samples: float) -> Exhibit:
    """Fig. 12: mean throughput with curves that users guess, with true curves and without curves."""
    rows: list[tuple[Cell, ...]] = []
    workloads = sorted({workload for workload, _ in scores})
    for workload in workloads:
        reference = [entry.samples for entry in scores[workload, System.TRUE]]
        for system in System:
            found = scores[workload, system]
            shares = [entry.samples / base for entry, base in zip(found, reference, strict=True)]
            mean, half = interval(shares)
            rate = statistics.fmean(entry.samples for entry in found) / (hours * 3600.0)
            profiles = statistics.fmean(entry.profiles for entry in found)
            cost = statistics.fmean(entry.node_seconds for entry in found) / 3600.0
            rows.append((workload.value, system.value, rate, 100 * mean, 100 * half, profiles, cost))
    gains = [_gain(scores, workload) for workload in workloads]
    series = {
        workload.value: [
            statistics.fmean(entry.samples for entry in scores[workload, system]) / (hours * 3600.0)
            for system in System
        ]
        for workload in workloads
    }
    names = [system.value.replace("FreeTrain, ", "F: ").replace("MalleTrain", "M") for system in System]
    return Exhibit(
        "figure-12",
        "Fig. 12: throughput of FreeTrain and MalleTrain, HPO and NAS",
        (
            "workload",
            "system",
            "samples/s",
            "% of true curves",
            "± (95 %)",
            "profiles",
            "node-hours in profiles",
        ),
        rounded(rows),
        f"Published: MalleTrain processes up to {100 * PUBLISHED_GAIN:.1f} % more than FreeTrain with guesses. Ours: "
        + "; ".join(gains)
        + f". Jobs of {samples / 1e6:g} million samples; profiles are charged in full: stalls of the job and of those "
        "that give nodes, and the time at scales that no plan would choose. Intervals are over seeds of the workload. "
        "The hollow marks are the published gain over our lowest FreeTrain with guesses.",
        bars(
            "Fig. 12: throughput",
            Axis("samples/s", zero=True),
            names,
            series,
            published={
                kind: published_rates(System, dict(zip(System, rates, strict=True))) for kind, rates in series.items()
            },
        ),
    )


def published_rates(systems: Iterable[System], rates: Mapping[System, float]) -> list[float | None]:
    """Where the published gain over FreeTrain with guesses lies on our scale: at each MalleTrain without a prior.

    Args:
        systems: Systems in the order of the chart.
        rates: Our samples/s by system.
    """
    worst = min((rates[system] for system in GUESSES if system in rates), default=0.0)
    ours = (System.PROFILED, System.PROFILED_FAMILIES)
    return [worst * (1.0 + PUBLISHED_GAIN) if system in ours and worst else None for system in systems]


def _gain(scores: Scores, workload: WorkloadKind) -> str:
    best = max(
        (System.PRIOR, System.PROFILED, System.PROFILED_FAMILIES), key=lambda system: _total(scores, workload, system)
    )
    worst = min(GUESSES, key=lambda system: _total(scores, workload, system))
    shares = [
        ours.samples / guess.samples - 1
        for ours, guess in zip(scores[workload, best], scores[workload, worst], strict=True)
    ]
    mean, half = interval(shares)
    return f"{workload.value}: {best.value} {100 * mean:+.1f} ± {100 * half:.1f} % against {worst.value}"


def _total(scores: Scores, workload: WorkloadKind, system: System) -> float:
    return sum(entry.samples for entry in scores[workload, system])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half-width of its 95 % confidence interval; infinity for a single value."""
    if len(values) < 2:
        return statistics.fmean(values), math.inf
    quantile = _STUDENT.get(len(values) - 1, 2.0)
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def order_exhibit(up_s: float, down_s: float, visit_s: float) -> Exhibit:
    """Fig. 6: profiling from the largest scale down, against profiling from the smallest up."""
    rows: list[tuple[Cell, ...]] = []
    for top in (5, 8, 16, 32, 64):
        for label, scales in (
            ("every scale", list(range(1, top + 1))),
            ("candidate scales", candidate_scales(range(1, top + 1))),
        ):
            for order, path in (("incremental", scales), ("inverse", [1, *reversed(scales)])):
                growths, seconds, stalled, held = order_cost(path, up_s, down_s, visit_s)
                rows.append((top, label, order, growths, seconds, stalled, held))
    series = {
        f"{label}, {order}": (
            [float(row[0] or 0) for row in rows if row[1:3] == (label, order)],
            [float(row[5] or 0) for row in rows if row[1:3] == (label, order)],
        )
        for label in ("every scale", "candidate scales")
        for order in ("incremental", "inverse")
    }
    return Exhibit(
        "figure-6",
        "Fig. 6: inverse order against incremental order",
        ("largest scale", "measured", "order", "growths", "seconds", "node-seconds stalled", "node-seconds held"),
        rounded(rows),
        f"A job starts on one node; R_up {up_s:g} s, R_down {down_s:g} s, {visit_s:g} s at each scale. Published: one "
        "growth instead of four for five nodes. The inverse order spares R_up - R_down at every step but the first.",
        lines("Fig. 6: node-seconds that stand still", "largest scale", Axis("node-seconds", zero=True), series),
    )


def order_cost(path: Sequence[int], up_s: float, down_s: float, visit_s: float) -> tuple[int, float, float, float]:
    """Cost of a path over scales: growths, seconds, node-seconds stalled, node-seconds held."""
    growths, seconds, stalled, held = 0, visit_s, 0.0, visit_s * path[0]
    for before, after in pairwise(path):
        stall = up_s if after > before else down_s if after < before else 0.0
        growths += after > before
        seconds += stall + visit_s
        stalled += stall * after
        held += (stall + visit_s) * after
    return growths, seconds, stalled, held


def truth_exhibit(rows: Sequence[ProfileAccuracy], exhaustive: Mapping[str, float]) -> Exhibit:
    """Profiles of jobs whose true curves are known."""
    table = [
        (
            row.shape,
            100 * row.spread,
            100 * row.mean_error,
            100 * row.worst_error,
            " ".join(map(str, row.visited)),
            row.growths,
            row.node_seconds,
            100 * row.node_seconds / exhaustive[row.shape],
            row.seconds,
        )
        for row in rows
        if row.strategy is ScaleStrategy.ADAPTIVE
    ]
    return Exhibit(
        "truths",
        "Profiles of jobs whose curve is known",
        (
            "shape",
            "noise, %",
            "mean error, %",
            "worst error, %",
            "scales measured",
            "growths",
            "node-seconds",
            "% of every scale",
            "seconds",
        ),
        rounded(table, 3),
        "The job trains on one node, then 63 more come; it may use 64. Errors are over all 64 scales. The last but one "
        "column compares with measuring every scale in the same way, at the smaller noise.",
    )


def solver_exhibit(times: Sequence[tuple[int, float]], cores: int) -> Exhibit:
    """Fig. 8: solve times while other allocators solve on the same machine."""
    return Exhibit(
        "figure-8",
        "Fig. 8: time of a solve while 1 to 40 allocators solve at once",
        ("allocators", "mean, ms"),
        rounded(times, 3),
        f"Published: constant until there are more of them than cores (32). Here there are {cores}.",
        lines(
            "Fig. 8: time of a solve",
            "allocators at once",
            "ms",
            {"HiGHS on counts, 20 jobs, 200 nodes": ([float(k) for k, _ in times], [ms for _, ms in times])},
        ),
        measured=True,
    )
