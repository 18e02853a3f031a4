"""BBSched's exhibits from trials: usage, waits, slowdowns, Kiviat areas, windows, and what is left for our jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from malletrain.reproduce.bbsched.trials import (
    BREAKDOWN,
    BURST_BUFFER_USAGE,
    HARVEST_RECIPES,
    METHODS,
    NODE_USAGE,
    READING_RECIPES,
    READINGS,
    RECIPES,
    SSD_METHODS,
    SSD_RECIPES,
    TABLE_3,
    WAIT,
    WAIT_CHANGES,
    WINDOWS,
    BatchResults,
    BatchTrialResult,
)
from malletrain.reproduce.exhibits import Cell, Exhibit, round_cells
from malletrain.reproduce.malletrain.exhibits import interval
from malletrain.simulator.batch.running import BASELINE
from malletrain.simulator.batch.usage import UsageMetrics, kiviat, kiviat_area, kiviat_axes
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import Chart, bars, kiviat_chart

_Value = Callable[[UsageMetrics], float]
_OURS = " Ours: generated workloads with the machines' traits, means over {} of them, paired with the baseline, ± 95 %."
_USAGES = {"nodes": 2, "burst buffer": 4}
"""Columns of Table 3 that are drawn; what is published stands one to the right."""
_YOURS = " Ours: parts of your log, means over {} of them, paired with the baseline, ± 95 %."
_CAREFUL = " Where intervals overlap, no order of methods can be told."


def exhibits_of(results: BatchResults) -> list[Exhibit]:
    """All exhibits that need trials, in the order of the paper."""
    return [
        _usage(results, "figure-6", "node usage", lambda metrics: 100 * metrics.node_usage, NODE_USAGE),
        _usage(
            results,
            "figure-7",
            "burst buffer usage",
            lambda metrics: 100 * metrics.burst_buffer_usage,
            BURST_BUFFER_USAGE,
        ),
        _relative(results, "figure-8", "wait", lambda metrics: metrics.mean_wait_s, WAIT, WAIT_CHANGES),
        _breakdown(results, "figure-9", "nodes", lambda metrics: metrics.waits_by_nodes),
        _breakdown(results, "figure-10", "burst buffer", lambda metrics: metrics.waits_by_burst_buffer),
        _breakdown(results, "figure-11", "run time", lambda metrics: metrics.waits_by_run),
        _relative(results, "figure-12", "slowdown", lambda metrics: metrics.mean_slowdown, "Published: as the waits."),
        _kiviats(results, "figure-13", RECIPES, METHODS, "Published: BBSched has the largest area in all ten."),
        _windows(results),
        _kiviats(results, "figure-14", SSD_RECIPES, SSD_METHODS, "Published: BBSched best overall."),
        _readings(results),
        _idle_by_cause(results),
    ]


def _note(results: BatchResults) -> str:
    return (_OURS if results.plan.log is None else _YOURS).format(results.plan.seeds)


def _values(results: Sequence[BatchTrialResult], value: _Value) -> list[float]:
    return [value(result.metrics) for result in results]


def _usage(results: BatchResults, name: str, title: str, value: _Value, text: str) -> Exhibit:
    heads = (f"{title}, %", "points against baseline", "% against baseline")
    changes = (_differences, _changes)
    return _against_baseline(results, name, (title, f"{title}, %"), heads, value, text, changes, 2)


def _relative(
    results: BatchResults,
    name: str,
    title: str,
    value: _Value,
    text: str,
    theirs: Mapping[str, float] | None = None,
) -> Exhibit:
    heads = (title, "% against baseline")
    return _against_baseline(
        results, name, (title, f"{title} against the baseline, %"), heads, value, text, (_changes,), 3, theirs
    )


def _against_baseline(
    results: BatchResults,
    name: str,
    titles: tuple[str, str],
    heads: tuple[str, ...],
    value: _Value,
    text: str,
    changes: Sequence[Callable[[Sequence[float], Sequence[float]], list[float]]],
    drawn_column: int,
    theirs: Mapping[str, float] | None = None,
) -> Exhibit:
    """A row for each workload and method; `titles` are those of table and figure, which shows column `drawn_column`.

    What the paper reports of BBSched by workload, `theirs`, is drawn beside it.
    """
    rows: list[tuple[Cell, ...]] = []
    for machine in results.plan.machines:
        for recipe in RECIPES:
            before = _values(results.over_seeds(machine, recipe, BASELINE), value)
            for method in METHODS:
                values = _values(results.over_seeds(machine, recipe, method), value)
                change = [interval(one(values, before)) for one in changes]
                rows.append((f"{machine}-{recipe}", method, fmean(values), *(cell for pair in change for cell in pair)))
    table, figure = (f"Fig. {name.removeprefix('figure-')}: {title}" for title in titles)
    return Exhibit(
        name,
        table,
        ("workload", "method", heads[0], *(cell for head in heads[1:] for cell in (head, "± (95 %)"))),
        round_cells(rows),
        text + _note(results) + _CAREFUL,
        _bars(figure, rows, drawn_column, theirs),
    )


def _differences(values: Sequence[float], before: Sequence[float]) -> list[float]:
    return [one - base for one, base in zip(values, before, strict=True)]


def _changes(values: Sequence[float], before: Sequence[float]) -> list[float]:
    return [100 * (one / base - 1) if base else 0.0 for one, base in zip(values, before, strict=True)]


def _bars(
    title: str, rows: Sequence[tuple[Cell, ...]], column: int, theirs: Mapping[str, float] | None = None
) -> Chart | None:
    workloads = list(dict.fromkeys(str(row[0]) for row in rows))
    series = {
        method: [float(row[column] or 0) for row in rows if row[1] == method]
        for method in dict.fromkeys(str(row[1]) for row in rows)
    }
    published = {"bbsched": [theirs.get(workload) for workload in workloads]} if theirs else None
    return bars(title, Axis(zero=True), workloads, series, published=published)


def _breakdown(
    results: BatchResults, name: str, title: str, waits: Callable[[UsageMetrics], Mapping[str, float]]
) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    classes: dict[str, None] = {}
    by_method = {method: results.over_seeds(results.plan.main, "s4", method) for method in METHODS}
    for waits_by_class in by_method.values():
        for one in waits_by_class:
            classes |= dict.fromkeys(waits(one.metrics))
    for kind in classes:
        for method in METHODS:
            pairs = [
                (waits(one.metrics)[kind], waits(base.metrics)[kind])
                for one, base in zip(by_method[method], by_method[BASELINE], strict=True)
                if kind in waits(base.metrics)
            ]
            mean, half = interval(_changes([one for one, _ in pairs], [base for _, base in pairs]))
            rows.append((kind, method, fmean(one for one, _ in pairs), mean, half))
    number = name.removeprefix("figure-")
    heads = (title, "method", "wait, s", "% against baseline", "± (95 %)")
    return Exhibit(
        name,
        f"Fig. {number}: wait on Theta-S4 by {title}",
        heads,
        round_cells(rows),
        BREAKDOWN[title] + _note(results),
        _bars(f"Fig. {number}: wait by {title}, s", rows, 2),
    )


def _kiviats(results: BatchResults, name: str, recipes: Sequence[str], methods: Sequence[str], text: str) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    figure = None
    for machine in results.plan.machines:
        for recipe in recipes:
            areas: dict[str, list[float]] = {method: [] for method in methods}
            shapes: dict[str, list[tuple[float, ...]]] = {method: [] for method in methods}
            axes: tuple[str, ...] = ()
            for seed in range(results.plan.seeds):
                metrics = {
                    method: results.by_trial[results.plan.trial(machine, recipe, method, seed)].metrics
                    for method in methods
                }
                axes = kiviat_axes(metrics)
                for method, values in kiviat(metrics).items():
                    areas[method].append(kiviat_area(values))
                    shapes[method].append(values)
            rows += [(f"{machine}-{recipe}", method, *interval(areas[method])) for method in methods]
            means = {method: [fmean(column) for column in zip(*shapes[method], strict=True)] for method in methods}
            figure = kiviat_chart(f"{machine}-{recipe}", axes, means)
    number = name.removeprefix("figure-")
    return Exhibit(
        name,
        f"Fig. {number}: areas of Kiviat graphs",
        ("workload", "method", "area", "± (95 %)"),
        round_cells(rows),
        text + _note(results) + " The graph is that of the last workload in the table.",
        figure,
    )


def _windows(results: BatchResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for machine in results.plan.machines:
        for size in WINDOWS:
            trials = results.of([results.plan.windowed(machine, size, seed) for seed in range(results.plan.seeds)])
            metrics = [one.metrics for one in trials]
            ours = (
                100 * fmean(one.node_usage for one in metrics),
                100 * fmean(one.burst_buffer_usage for one in metrics),
                fmean(one.mean_wait_s for one in metrics),
                fmean(one.mean_slowdown for one in metrics),
            )
            by_genetic = sum(one.genetic_answers for one in trials)
            theirs = TABLE_3.get((machine, size), (None,) * len(ours))
            rows.append(
                (f"{machine}-s4", size, *(cell for pair in zip(ours, theirs, strict=True) for cell in pair), by_genetic)
            )
    heads = (
        "workload",
        "window",
        *(
            f"{what}{who}"
            for what in ("nodes, %", "burst buffer, %", "wait, s", "slowdown")
            for who in ("", " (published)")
        ),
        "selections by the genetic algorithm",
    )
    return Exhibit(
        "table-3",
        "Table 3: BBSched with windows of 10, 20 and 50 jobs",
        heads,
        round_cells(rows),
        "Absolute numbers depend on the machines' own jobs, which are not public." + _note(results),
        bars(
            "Table 3: usage by window, %",
            Axis(zero=True),
            [f"{row[0]}, {row[1]}" for row in rows],
            {label: [_number_or_none(row[column]) for row in rows] for label, column in _USAGES.items()},
            published={label: [_number_or_none(row[column + 1]) for row in rows] for label, column in _USAGES.items()},
        ),
    )


def _number_or_none(cell: Cell) -> float | None:
    return cell if isinstance(cell, float) else None


def _readings(results: BatchResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for recipe in READING_RECIPES:
        for name in READINGS:
            with_reading, before = (
                results.of([trial(name, recipe, seed) for seed in range(results.plan.seeds)])
                for trial in (results.plan.reading, results.plan.reading_baseline)
            )
            wait, longest = (
                interval(_changes(_values(with_reading, value), _values(before, value)))
                for value in (lambda one: one.mean_wait_s, lambda one: one.max_wait_s)
            )
            rows.append((f"{results.plan.main}-{recipe}", name, *wait, *longest))
    heads = ("workload", "reading", "wait, % against baseline", "± (95 %)", "longest wait, %", "± (95 %)")
    remark = (
        "Not in the paper: where does the gain come from? Starting in queue order what fits in the same window "
        "optimises nothing, but also gives up the promise to the head of the queue. With a reservation for jobs past "
        "the starvation bound that promise is kept." + _note(results)
    )
    return Exhibit("readings", "Where the gain comes from", heads, round_cells(rows), remark)


def _idle_by_cause(results: BatchResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for recipe in HARVEST_RECIPES:
        before = _harvest_results(results, recipe, BASELINE)
        for method in METHODS:
            harvested = _harvest_results(results, recipe, method)
            idle = [one.metrics.idle for one in harvested]
            shares = [
                fmean(100 * getattr(one, cause) / one.all for one in idle)
                for cause in ("no_job_waiting", "reservation", "burst_buffer", "too_few")
            ]
            wait = interval(
                _changes(*(_values(one, lambda metrics: metrics.mean_wait_s) for one in (harvested, before)))
            )
            nodes = interval(_changes(*([each.equivalent_nodes or 0.0 for each in one] for one in (harvested, before))))
            gain = [
                100 * ((one.efficiency or 0.0) - (base.efficiency or 0.0))
                for one, base in zip(harvested, before, strict=True)
            ]
            rows.append(
                (
                    f"{results.plan.main}-{recipe}",
                    method,
                    *wait,
                    fmean(one.equivalent_nodes or 0.0 for one in harvested),
                    *nodes,
                    100 * fmean(one.efficiency or 0.0 for one in harvested),
                    *interval(gain),
                    *shares,
                )
            )
    heads = (
        "workload",
        "method",
        "main queue's wait, %",
        "± (95 %)",
        "N_eq",
        "N_eq, %",
        "± (95 %)",
        "U, %",
        "U, points",
        "± (95 %)",
        "idle, %: no job waiting",
        "held for a reservation",
        "only burst buffer lacking",
        "too few",
    )
    remark = (
        "Not in the paper: what each method leaves for MalleTrain's trainings (built-in ImageNet mix, 40 jobs at once, "
        "T_fwd 120 s), and what it does to the main queue. All changes are against the baseline on the same workload."
        + _OURS.format(results.plan.harvest_seeds)
    )
    return Exhibit(
        "left-for-us", "What each method leaves for trainings on idle nodes", heads, round_cells(rows), remark
    )


def _harvest_results(results: BatchResults, recipe: str, method: str) -> list[BatchTrialResult]:
    return results.of([results.plan.harvested(recipe, method, seed) for seed in range(results.plan.harvest_seeds)])
