"""MalleTrain's exhibits: Fig. 2, 6, 8, 12 and 14, the accuracy of profiles, and what profiling costs at the start."""

from __future__ import annotations

import math
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel
from malletrain.allocator.problem.objective import scale_values
from malletrain.allocator.solvers.milp import MilpModel
from malletrain.allocator.solvers.milp_counts import counts_model
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.machine.scale_selection import ScaleStrategy, candidate_scales
from malletrain.reproduce.exhibits import Cell, Exhibit, round_cells
from malletrain.reproduce.malletrain.systems import GUESSES, Mix, Score, System, WorkloadKind
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.profiling.advisor import LearningOptions, ProfilingAdvisor
from malletrain.simulator.profiling.profile_accuracy import ProfileAccuracy
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import MODELS, preset_jobs
from malletrain.simulator.replay.records import Columns, cumulative_samples
from malletrain.simulator.replay.running_job import speeds
from malletrain.simulator.report.axes import Axis, Kind
from malletrain.simulator.report.plots import bars, lines
from malletrain.simulator.traces.columns import Seconds, columns_of
from malletrain.simulator.traces.describe import FRAGMENT_LIMITS_S, describe, observed_lengths
from malletrain.simulator.traces.presets import PRESETS, preset_trace
from malletrain.simulator.traces.synthesize import synthesize

_SCALES = (1, 2, 4, 8, 16, 32)


def scaling_exhibit() -> Exhibit:
    """Speedups of the published models on up to 32 nodes: what every replay of them rests on."""
    rows, series = [], {}
    for job in preset_jobs("imagenet", len(MODELS)):
        rates = speeds(job, _SCALES[-1])
        speedups = [rates[nodes] / rates[1] for nodes in _SCALES]
        rows += [
            (job.model, nodes, rates[nodes], speedup, 100 * speedup / nodes)
            for nodes, speedup in zip(_SCALES, speedups, strict=True)
        ]
        series[job.model] = ([float(nodes) for nodes in _SCALES], speedups)
    return Exhibit(
        "figure-14",
        "Fig. 14: scaling up to 32 nodes",
        ("model", "nodes", "samples/s", "speedup", "efficiency, %"),
        round_cells(rows),
        "The paper measures on 32 nodes of Polaris with 128 A100. These are the curves that BFTrainer published for "
        "Summit (its Table 2), with which all replays here are made; nothing of it was measured by us.",
        lines("Fig. 14: speedup", "nodes", Axis("speedup", zero=True), series),
    )


_NAME = re.compile(r"(.*?[A-Za-z]?\d+)n\d+")
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Scatter:
    """How idle nodes are scattered over cabinets at some moment.

    Attributes:
        idle: How many there are.
        cabinets: In how many cabinets.
        fewest: How many cabinets could hold them, if whole cabinets were free.
        alone: How many have no other idle node in their cabinet.
    """

    idle: int
    cabinets: int
    fewest: int
    alone: int


def cabinet_of(node: str) -> str | None:
    """The cabinet that a name such as `c05n06` says; None: the name says none."""
    match = _NAME.fullmatch(node)
    return match[1] if match else None


def scatter_of(idle: Sequence[str], sizes: Counter[str]) -> Scatter:
    """How nodes are scattered over cabinets."""
    counts = Counter(cabinet for node in idle if (cabinet := cabinet_of(node)) is not None)
    fewest, remaining_nodes = 0, len(idle)
    for size in sorted(sizes.values(), reverse=True):
        if remaining_nodes <= 0:
            break
        fewest, remaining_nodes = fewest + 1, remaining_nodes - size
    return Scatter(len(idle), len(counts), fewest, sum(count == 1 for count in counts.values()))


def fragments_exhibit(scenario: Scenario) -> Exhibit | None:
    """Fig. 2 at every full hour; None: the names of the nodes say nothing of where they are."""
    cabinets = [cabinet_of(node) for node in scenario.nodes]
    if None in cabinets or len(set(cabinets)) < 2:
        return None
    sizes = Counter(cabinet for cabinet in cabinets if cabinet is not None)
    hours, scatters = [], []
    idle: set[str] = set()
    events = iter(scenario.events)
    event = next(events, None)
    for hour in range(int(scenario.duration_s // _HOUR_S)):
        while event is not None and event.time_s <= hour * _HOUR_S:
            idle -= set(event.left)
            idle |= {name for name, _ in event.joined}
            event = next(events, None)
        if idle:
            hours.append(float(hour))
            scatters.append(scatter_of(sorted(idle), sizes))
    if not scatters:
        return None
    rows = [(hour, one.idle, one.cabinets, one.fewest, one.alone) for hour, one in zip(hours, scatters, strict=True)]
    mean = [statistics.fmean(column) for column in zip(*(row[1:] for row in rows), strict=True)]
    return Exhibit(
        "figure-2",
        "Fig. 2: idle nodes are scattered over the machine",
        ("hour", "idle nodes", "cabinets that they are in", "fewest cabinets for as many", "alone in their cabinet"),
        round_cells(rows),
        f"The paper draws one moment of Polaris. Here: {len(sizes)} cabinets of this log, by the names of its nodes; "
        f"in the mean {mean[0]:.1f} idle nodes in {mean[1]:.1f} cabinets, where {mean[2]:.1f} would hold them; "
        f"{100 * mean[3] / mean[0]:.0f} % have no idle node beside them.",
        lines(
            "Fig. 2: cabinets with idle nodes",
            "hour",
            Axis("cabinets", zero=True),
            {
                "cabinets that idle nodes are in": (hours, [float(one.cabinets) for one in scatters]),
                "fewest cabinets for as many": (hours, [float(one.fewest) for one in scatters]),
            },
        ),
    )


ALLOCATORS = (1, 2, 4, 8, 16, 40)
_JOBS, _NODES, _LIMIT_S = 20, 200, 60.0


class Solver(Protocol):
    """Interface of `allocator.solver_process.SolverProcess`."""

    def solve(self, model: MilpModel, seconds: float) -> object:
        """Solve a model within a time limit in seconds."""

    def close(self) -> None:
        """End the process."""


def concurrent_times(
    make: Callable[[], Solver], allocators: Sequence[int], repeats: int, seed: int
) -> list[tuple[int, float]]:
    """Mean solve time by number of allocators that solve at once.

    Returns:
        Pairs of a number of allocators and milliseconds.
    """
    models = [_model(random.Random(seed + index)) for index in range(repeats)]
    processes = [make() for _ in range(max(allocators))]

    def work(process: Solver) -> float:
        began = time.perf_counter()
        for model in models:
            process.solve(model, _LIMIT_S)
        return (time.perf_counter() - began) / repeats

    # One thread pool for all: the process of a solver ends with the thread that started it.
    with ThreadPoolExecutor(len(processes)) as threads:
        try:
            list(threads.map(work, processes))
            return [(k, 1000.0 * statistics.fmean(threads.map(work, processes[:k]))) for k in allocators]
        finally:
            for process in processes:
                process.close()


def _model(rng: random.Random) -> MilpModel:
    names = tuple(f"n{index}" for index in range(_NODES))
    free = list(names)
    jobs = []
    for job in preset_jobs("imagenet", _JOBS):
        held = tuple(free.pop() for _ in range(min(len(free), rng.randint(0, 2 * _NODES // _JOBS), job.max_nodes)))
        jobs.append(replace(job.demand(), current_nodes=held))
    problem = AllocationProblem(names, 120.0, tuple(jobs), CostModel.PAPER)
    return counts_model([scale_values(job, problem) for job in problem.jobs], _NODES)


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
            entries = scores[workload, system]
            shares = [entry.samples / base for entry, base in zip(entries, reference, strict=True)]
            mean, half = interval(shares)
            rate = statistics.fmean(entry.samples for entry in entries) / (hours * 3600.0)
            profiles = statistics.fmean(entry.profiles for entry in entries)
            cost = statistics.fmean(entry.node_seconds for entry in entries) / 3600.0
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
        round_cells(rows),
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
        round_cells(rows),
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
        round_cells(table, 3),
        "The job trains on one node, then 63 more come; it may use 64. Errors are over all 64 scales. The last but one "
        "column compares with measuring every scale in the same way, at the smaller noise.",
    )


def solver_exhibit(times: Sequence[tuple[int, float]], cores: int) -> Exhibit:
    """Fig. 8: solve times while other allocators solve on the same machine."""
    return Exhibit(
        "figure-8",
        "Fig. 8: time of a solve while 1 to 40 allocators solve at once",
        ("allocators", "mean, ms"),
        round_cells(times, 3),
        f"Published: constant until there are more of them than cores (32). Here there are {cores}.",
        lines(
            "Fig. 8: time of a solve",
            "allocators at once",
            "ms",
            {"HiGHS on counts, 20 jobs, 200 nodes": ([float(k) for k, _ in times], [ms for _, ms in times])},
        ),
        measured=True,
    )


START_SEEDS = 20
HOURS = (0.5, 1.0, 2.0, 4.0)
MODES = (ProfilingMode.ALWAYS, ProfilingMode.NEVER)


@dataclass(frozen=True)
class StartTrial:
    """One replay of the first hours: jobs that nobody knows, profiled or not."""

    mode: ProfilingMode
    mix: Mix
    options: ReplayOptions


@dataclass(frozen=True)
class StartScore:
    """What came of it.

    Attributes:
        samples: Samples processed, net, until each of HOURS that the replay has.
        profiles: Profile runs that were completed.
        seconds: Mean length of these in seconds.
        node_seconds: Node-seconds that a job had in its profile, in the mean.
        stalled: Those of them during which a change of scale was under way.
        growths: Growths of a profile, in the mean.
    """

    samples: tuple[float, ...]
    profiles: int = 0
    seconds: float = 0.0
    node_seconds: float = 0.0
    stalled: float = 0.0
    growths: float = 0.0


def start_score(scenario: Scenario, trial: StartTrial) -> StartScore:
    """Run one trial."""
    learning = LearningOptions(mode=trial.mode)
    advisor = ProfilingAdvisor(learning, trial.options, len(scenario.nodes), np.random.default_rng(trial.mix.seed))
    result = run_replay(scenario.events, scenario.nodes, trial.mix.jobs(), trial.options, advisor=advisor)
    times = [hours * 3600.0 for hours in HOURS if hours * 3600.0 <= scenario.duration_s]
    samples = _samples_until(result.decisions, times)
    runs: list[ProfileRun] = [*advisor.ended, *advisor.state.runs.values()]
    done = [run for run in runs if run.state is ProfileRunState.DONE]
    if not done:
        return StartScore(samples)
    means = (
        statistics.fmean(getattr(run, name) for run in done)
        for name in ("seconds", "node_seconds", "stalled_node_seconds", "growths")
    )
    return StartScore(samples, len(done), *means)


def _samples_until(decisions: Columns, times_s: Sequence[float]) -> tuple[float, ...]:
    """Samples processed until times in seconds; after the last decision, jobs go on at their rates."""
    last_s, rate = float(decisions["time_s"][-1]), float(decisions["rate"][-1])
    settled = cumulative_samples(decisions, times_s).tolist()
    return tuple(known + rate * max(0.0, time - last_s) for known, time in zip(settled, times_s, strict=True))


def start_exhibit(always: Sequence[StartScore], never: Sequence[StartScore]) -> Exhibit:
    """What profiles have cost or gained until some hours after the start.

    Args:
        always: Scores with profiles of every job, by seed.
        never: Those without any, of the same seeds.
    """
    hours = HOURS[: len(always[0].samples)]
    rows = []
    for place, hour in enumerate(hours):
        pairs = zip(always, never, strict=True)
        shares = [one.samples[place] / two.samples[place] - 1.0 for one, two in pairs if two.samples[place] > 0]
        mean, half = interval(shares) if shares else (0.0, 0.0)
        rows.append((hour, 100 * mean, 100 * half, len(shares)))
    ran = [one for one in always if one.profiles]
    costs = ""
    if ran:
        seconds, held, stalled, growths = (
            statistics.fmean(getattr(one, name) for one in ran)
            for name in ("seconds", "node_seconds", "stalled", "growths")
        )
        costs = (
            f" A profile took {seconds:.0f} s in the mean, {held:,.0f} node-seconds, of which {stalled:,.0f} stood "
            f"still, and {growths:.1f} growths."
        )
    return Exhibit(
        "start-cost",
        "What profiling costs at the start: always against never",
        ("hours", "samples until then, always against never, %", "± (95 %)", "seeds"),
        round_cells(rows, 3),
        f"{len(always)} workloads of networks that nobody knows (NAS), from an empty machine on, with and without "
        f"profiles; without, curves are learned in ordinary running. The paper has no such figure.{costs}",
        lines(
            "Samples with profiles, against none",
            "hours since the start",
            Axis("%"),
            {"always against never": ([row[0] for row in rows], [row[1] for row in rows])},
        ),
    )


SAMPLES = (10_000, 1_000)
"""Fragments of the paper's synthetic traces."""
_POLARIS_HOURS = 168.0


def gaps_exhibit(trace: Trace, rng: random.Random) -> Exhibit | None:
    """Fig. 9: gaps between events of a trace, and of one that is generated with Polaris's traits.

    Returns:
        The exhibit; None where the trace has fewer than two events.
    """
    ours = {share.shorter_than_s: share.gaps for share in describe(trace).event_gap_shares}
    if not ours:
        return None
    drawn = preset_trace(PRESETS["polaris"], rng, duration_s=3600 * _POLARIS_HOURS)
    theirs = {share.shorter_than_s: share.gaps for share in describe(drawn).event_gap_shares}
    middle = [shares[600.0] - shares[60.0] for shares in (ours, theirs)]
    return Exhibit(
        "figure-9",
        "Fig. 9: gaps between events, cumulative",
        ("shorter than, s", "this trace", "generated as Polaris"),
        round_cells([(limit, ours[limit], theirs[limit]) for limit in ours]),
        "Published: over 50 % of Polaris's gaps are shorter than 10 s; Polaris has more of up to 60 s, and Summit more "
        f"of 60 to 600 s. Here: {theirs[10.0]:.0%} below 10 s, {theirs[60.0]:.0%} against {ours[60.0]:.0%} below 60 s, "
        f"and {middle[1]:.0%} against {middle[0]:.0%} between. Polaris's log tells of no idle nodes and is "
        "not public: its "
        "trace is generated with what the paper says of it, so that this shows the trace, and no finding.",
        lines(
            "Fig. 9: share of gaps that are shorter",
            Axis("gap", Kind.SECONDS, log=True),
            Axis(kind=Kind.SHARE, zero=True),
            {
                "this trace": (list(ours), list(ours.values())),
                "generated as Polaris": (list(theirs), list(theirs.values())),
            },
        ),
    )


def lengths_exhibit(trace: Trace, rng: np.random.Generator) -> Exhibit:
    """Fig. 11: how long fragments of a trace are, beside those of a synthetic one.

    Args:
        trace: Idle nodes, with at least one complete fragment and gap.
        rng: For the synthetic trace, and for which of its fragments are counted.

    Raises:
        InvalidInputError: the trace can't be imitated.
    """
    real = observed_lengths(trace, columns_of(trace))
    drawn = synthesize(trace, rng)
    every = observed_lengths(drawn, columns_of(drawn))
    counted = {"this trace": real}
    for count in SAMPLES:
        counted[f"synthetic, {count:,}"] = rng.choice(every, min(count, len(every)), replace=False)
    limits = (0.0, *FRAGMENT_LIMITS_S, np.inf)
    shares = {name: (np.histogram(lengths, limits)[0] / len(lengths)).tolist() for name, lengths in counted.items()}
    bins = pairwise(limits)
    names = [f"{low:g} and more" if high == np.inf else f"{low:g} to {high:g}" for low, high in bins]
    apart = {name: largest_difference(real, lengths) for name, lengths in counted.items() if name != "this trace"}
    return Exhibit(
        "figure-11",
        "Fig. 11: lengths of fragments, of the log and of synthetic traces",
        ("seconds", *(f"{name}, share" for name in counted)),
        round_cells([(name, *(values[place] for values in shares.values())) for place, name in enumerate(names)]),
        f"Published: synthetic traces keep the distribution of the log. Here {len(real):,} fragments of the log, and "
        "the cumulative shares of synthetic ones differ from theirs by "
        + ", ".join(f"at most {100 * value:.1f} points ({name})" for name, value in apart.items())
        + ".",
        bars("Fig. 11: share of fragments", Axis(kind=Kind.SHARE, zero=True), names, dict(shares)),
    )


def largest_difference(first: Seconds, second: Seconds) -> float:
    """Kolmogorov's distance: by how much two cumulative distributions differ at most, from 0 to 1."""
    places = np.union1d(first, second)
    below = [np.searchsorted(np.sort(values), places, side="right") / len(values) for values in (first, second)]
    return float(np.abs(below[0] - below[1]).max())
