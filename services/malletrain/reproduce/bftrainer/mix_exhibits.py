"""BFTrainer's exhibits on jobs of several models (sections 5.2 to 5.4): Fig. 12 to 16, Tables 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from malletrain.allocator.problem.allocation_problem import ObjectiveMetric
from malletrain.allocator.problem.objective import metric_scale
from malletrain.reproduce.bftrainer.experiments import (
    COST_FACTORS,
    MIX_FORWARD_S,
    MODEL_EFFICIENCY,
    PARALLEL,
    TABLE_3,
    TABLE_4,
    UNOCCUPIED,
    JobSets,
    cost_name,
    mix_name,
    model_name,
)
from malletrain.reproduce.exhibits import Exhibit, round_cells
from malletrain.simulator.replay.evaluation import Evaluation
from malletrain.simulator.report.axes import Axis, Kind
from malletrain.simulator.report.plots import bars, lines

Results = Mapping[str, Evaluation]
_LABELS = {ObjectiveMetric.THROUGHPUT: "throughput", ObjectiveMetric.SCALING_EFFICIENCY: "scaling efficiency"}
_EFFICIENCY = Axis("U", Kind.SHARE, zero=True)


def mix_exhibits(results: Results, job_sets: JobSets) -> list[Exhibit]:
    """Exhibits on jobs of several models."""
    return [
        _figure_12(results, job_sets),
        _figure_13(results, job_sets),
        _figure_14(results),
        _runtimes(results, job_sets, ObjectiveMetric.THROUGHPUT, "3", TABLE_3),
        _runtimes(results, job_sets, ObjectiveMetric.SCALING_EFFICIENCY, "4", TABLE_4),
        _figure_15(results, job_sets),
        _figure_16(results),
    ]


def common_efficiency(results: Results, job_sets: JobSets, metric: ObjectiveMetric, forward_s: float) -> float:
    """U in a unit that does not depend on the objective: a sample is worth the time that one node takes for it.

    Args:
        results: With the experiments of both metrics and this T_fwd.
        job_sets: Whose mix was replayed.
        metric: What was optimised.
        forward_s: T_fwd in seconds.
    """
    like = results[mix_name(ObjectiveMetric.SCALING_EFFICIENCY, forward_s)].metrics
    units = {
        model: metric_scale(job.demand(), ObjectiveMetric.SCALING_EFFICIENCY) for model, job in job_sets.models.items()
    }
    done = sum(job.samples * units[job.model] for job in results[mix_name(metric, forward_s)].result.jobs)
    return done / like.static_outcome if like.static_outcome else 0.0


def _figure_12(results: Results, job_sets: JobSets) -> Exhibit:
    models = sorted(job_sets.models)
    runtimes = {
        label: [results[mix_name(metric)].metrics.mean_runtime_hours.get(model) for model in models]
        for metric, label in _LABELS.items()
    }
    spread = [value for value in runtimes["throughput"] if value]
    ratio = max(spread) / min(spread) if spread else 0.0
    place = PARALLEL.index(10)
    published = {
        label: [table[model][place] if model in table else None for model in models]
        for label, table in zip(_LABELS.values(), (TABLE_3, TABLE_4), strict=True)
    }
    return Exhibit(
        "figure-12",
        "Fig. 12: mean runtime for two objectives",
        ("model", *(f"{label}, h" for label in runtimes)),
        round_cells(list(zip(models, *runtimes.values(), strict=True))),
        f"With throughput as the metric the slowest model takes {ratio:.0f} times as long as the fastest (published: "
        "more than 40 times on average); with scaling efficiency all take similar times.",
        bars("Fig. 12: mean runtime", Axis("hours", log=True), models, runtimes, published=published),
    )


def _figure_13(results: Results, job_sets: JobSets) -> Exhibit:
    places = [float(seconds) for seconds in MIX_FORWARD_S]
    series = {
        label: (places, [common_efficiency(results, job_sets, metric, s) for s in MIX_FORWARD_S])
        for metric, label in _LABELS.items()
    }
    own = [results[mix_name(ObjectiveMetric.THROUGHPUT, s)].metrics.utilization_efficiency for s in MIX_FORWARD_S]
    rows = list(zip(places, *(values for _, values in series.values()), own, strict=True))
    return Exhibit(
        "figure-13",
        "Fig. 13: U by objective and forward-looking time",
        ("T_fwd, s", *series, "throughput, in samples"),
        round_cells(rows),
        "Published: higher with scaling efficiency throughout. Both are measured alike here: by the work done in hours "
        "of one node, against what static nodes do of it with scaling efficiency. The last column has U of throughput "
        "in samples, against the same objective on static nodes, which prefers networks with many samples/s as well "
        "and so loses nothing by it.",
        lines("Fig. 13: U by objective, in one unit", "T_fwd, s", _EFFICIENCY, series),
    )


def _figure_14(results: Results) -> Exhibit:
    rows = []
    for metric, label in _LABELS.items():
        done = [results[mix_name(metric, parallel=parallel)] for parallel in PARALLEL]
        common = min(evaluation.metrics.jobs_completed for evaluation in done)
        for parallel, evaluation in zip(PARALLEL, done, strict=True):
            metrics = evaluation.metrics
            rows.append(
                (
                    label,
                    parallel,
                    _node_hours_until(evaluation, common),
                    _mean_runtime(evaluation),
                    metrics.utilization_efficiency,
                    1.0 - metrics.occupied_fraction,
                )
            )
    first, last = rows[0], rows[len(PARALLEL) - 1]
    places = [float(parallel) for parallel in PARALLEL]
    series = {f"U, {label}": (places, [float(row[4]) for row in rows if row[0] == label]) for label in _LABELS.values()}
    series["unoccupied"] = (places, [row[5] for row in rows[: len(PARALLEL)]])
    published = {"unoccupied": ([float(count) for count in UNOCCUPIED], list(UNOCCUPIED.values()))}
    return Exhibit(
        "figure-14",
        "Fig. 14: maximum number of parallel jobs",
        ("objective", "parallel", "node-hours", "mean runtime, h", "U", "unoccupied"),
        round_cells(rows),
        "Node-hours offered until as many jobs are done as the slowest setting does. From 5 to 35 parallel jobs with "
        f"throughput they change by {_change(first[2], last[2])}, the runtime by {_change(first[3], last[3])} "
        "(published: -28 % and +442 %, over all 1000 jobs; a week is too short for that). Unoccupied with 5 and 10: "
        f"{first[5]:.1%} and {rows[1][5]:.1%} (published: {UNOCCUPIED[5]:.1%} and {UNOCCUPIED[10]:.1%}).",
        lines(
            "Fig. 14: U and what no job holds, by number of parallel jobs",
            "parallel jobs",
            Axis(kind=Kind.SHARE, zero=True),
            series,
            published=published,
        ),
    )


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.0%}" if before else "–"


def _mean_runtime(evaluation: Evaluation) -> float:
    ended = [job.ended_s - job.admitted_s for job in evaluation.result.jobs if job.ended_s is not None]
    return float(np.mean(ended)) / 3600.0 if ended else 0.0


def _node_hours_until(evaluation: Evaluation, count: int) -> float:
    """Node-hours offered until so many jobs are done, by number of jobs."""
    ends = sorted(job.ended_s for job in evaluation.result.jobs if job.ended_s is not None)
    if not count or count > len(ends):
        return 0.0
    columns = evaluation.result.decisions
    times = np.append(columns["time_s"], ends[count - 1])
    before = times[:-1] < ends[count - 1]
    spans = np.minimum(np.diff(times), ends[count - 1] - times[:-1])[before]
    return float((columns["pool"][before] * spans).sum()) / 3600.0


def _runtimes(
    results: Results,
    job_sets: JobSets,
    metric: ObjectiveMetric,
    number: str,
    published: Mapping[str, tuple[float, ...]],
) -> Exhibit:
    models = [model for model in published if model in job_sets.models]
    models += [model for model in job_sets.models if model not in published]
    rows: list[tuple[str | float | None, ...]] = []
    series: dict[str, tuple[list[float], list[float]]] = {}
    for model in models:
        ours = [results[mix_name(metric, parallel=p)].metrics.mean_runtime_hours.get(model) for p in PARALLEL]
        rows.append((model, "ours", *ours))
        known = [(float(parallel), hours) for parallel, hours in zip(PARALLEL, ours, strict=True) if hours is not None]
        series[model] = ([parallel for parallel, _ in known], [hours for _, hours in known])
        if model in published:
            rows.append((model, "published", *published[model]))
    return Exhibit(
        f"table-{number}",
        f"Table {number}: mean runtime in hours by number of parallel jobs, {_LABELS[metric]} as metric",
        ("model", "", *(str(parallel) for parallel in PARALLEL)),
        round_cells(rows, 3),
        "Ours counts jobs that were done within the replay; the published ones come from a longer one, other nodes and "
        "stalls that the paper does not give.",
        lines(
            f"Table {number}: mean runtime, ours and published",
            "parallel jobs",
            Axis("hours", log=True),
            series,
            published={
                model: ([float(p) for p in PARALLEL], hours) for model, hours in published.items() if model in series
            },
        ),
    )


def _figure_15(results: Results, job_sets: JobSets) -> Exhibit:
    rows = [(model, results[model_name(model)].metrics.utilization_efficiency) for model in job_sets.models]
    rows.sort(key=lambda row: row[1])
    names = [row[0] for row in rows]
    published = ", ".join(f"{model} {share:.0%}" for model, share in MODEL_EFFICIENCY.items())
    return Exhibit(
        "figure-15",
        "Fig. 15: U of HPO by model, first 60 hours",
        ("model", "U"),
        round_cells(rows),
        f"Published: {published}; better scaling gives a higher U.",
        bars(
            "Fig. 15: U of HPO by model",
            _EFFICIENCY,
            names,
            {"U": [row[1] for row in rows]},
            published={"U": [MODEL_EFFICIENCY.get(name) for name in names]},
        ),
    )


def _figure_16(results: Results) -> Exhibit:
    rows = []
    for factor in COST_FACTORS:
        both, growths = (results[cost_name(factor, only)].metrics for only in (False, True))
        rows.append(
            (
                factor,
                growths.utilization_efficiency,
                both.utilization_efficiency,
                both.preemption_cost_samples / both.static_outcome if both.static_outcome else 0.0,
            )
        )
    places = [float(factor) for factor in COST_FACTORS]
    first, last = rows[0], rows[-1]
    return Exhibit(
        "figure-16",
        "Fig. 16: U where rescaling is dearer",
        ("factor", "growths dearer", "growths and shrinks dearer", "of these lost to preemption"),
        round_cells(rows),
        f"Published: U decreases slightly. At ten times the cost of growths it goes from {first[1]:.1%} to "
        f"{last[1]:.1%}. If shrinks are dearer as well, to {last[2]:.1%}: each preemption is a shrink that no plan can "
        f"avoid, and they then cost {last[3]:.1%} of A_s instead of {first[3]:.1%}.",
        lines(
            "Fig. 16: U by cost of rescaling",
            "times the cost",
            _EFFICIENCY,
            {"growths": (places, [row[1] for row in rows]), "growths and shrinks": (places, [row[2] for row in rows])},
        ),
    )
