"""FLEET's exhibits from simulations: times, speed-ups, sweeps, the gap to the best possible, idle nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from statistics import fmean, median

from malletrain.fleet.flotilla import Flotilla
from malletrain.fleet.lifecycle import fleet_global, train_flotilla
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import EnsembleModel, FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.reproduce.exhibits import Cell, Exhibit, round_cells
from malletrain.reproduce.fleet.trials import (
    FLEET_SECONDS,
    FLOTILLA_LENGTHS,
    FLOTILLAS,
    GPUS,
    GPUS_PER_NODE,
    NOISES,
    PREPROCESS,
    RIVALS,
    RUN_LENGTHS,
    SHARES,
    SOME_GPUS,
    SPEEDUPS,
    TOLERANCES,
    WAITING,
    FleetResults,
    FleetTrial,
    published_problem,
)
from malletrain.simulator.fleet.idle_nodes import (
    COMMIT_S,
    STALL_S,
    ByRemainingWork,
    GpuDivider,
    IdleNodesRun,
    InFlotillas,
    OneEach,
    member_jobs,
    train_on_idle_nodes,
)
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.node_events import NodeEvent, resource_integral
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines


def trace_exhibit(scenario: Scenario) -> Exhibit:
    """Train the published ensemble on a trace's idle nodes, each with as many GPUs as in the paper."""
    problem = published_problem(GPUS_PER_NODE * most_idle(scenario.events))
    table = rate_table(problem)
    dividers: dict[str, GpuDivider] = {
        "fleet": InFlotillas(problem, table),
        "makespan": ByRemainingWork(table),
        "list": OneEach(table),
    }
    runs = {
        name: train_on_idle_nodes(problem, table, divider, scenario.events, scenario.duration_s)
        for name, divider in dividers.items()
    }
    runs["milp"] = by_allocator(problem, table, scenario)
    rows: list[tuple[Cell, ...]] = [
        (name, run.seconds, run.done, 100 * run.utilisation, run.preemption_samples, run.rescale_samples)
        for name, run in runs.items()
    ]
    return Exhibit(
        "trace",
        "The same ensemble on the idle nodes of a trace",
        ("planner", "time to train, s", "networks done", "utilisation, %", "samples lost to leaves", "to rescaling"),
        round_cells(rows),
        f"Ours alone; {len(scenario.nodes)} nodes of {GPUS_PER_NODE} GPUs, of which at most "
        f"{most_idle(scenario.events)} are idle at once. A change of a member's GPUs stalls it for {STALL_S:.0f} s, "
        "and all its flotilla where they go at one pace; a node that leaves takes what was done since the last commit "
        f"({COMMIT_S:.0f} s). Planners know epochs and rates; preprocessing is no limit. Utilisation: the samples that "
        "count, each as long as one GPU takes for it, over the GPU-seconds offered until all are done. The allocator "
        "(milp) gives whole nodes to independent members.",
    )


def most_idle(events: Sequence[NodeEvent]) -> int:
    """Most nodes that are idle at once."""
    idle = most = 0
    for event in events:
        idle += len(event.joined) - len(event.left)
        most = max(most, idle)
    return most


def by_allocator(problem: FleetProblem, table: RateTable, scenario: Scenario) -> IdleNodesRun:
    """Members as independent jobs of a replay, which the production allocator gives whole nodes."""
    jobs = member_jobs(problem)
    options = ReplayOptions(duration_s=scenario.duration_s, max_parallel=len(jobs), commit_s=COMMIT_S)
    records = run_replay(scenario.events, scenario.nodes, jobs, options).jobs
    ends = [record.ended_s for record in records if record.ended_s is not None]
    seconds = max(ends) if len(ends) == len(jobs) else None
    until_s = scenario.duration_s if seconds is None else seconds
    events = [event for event in scenario.events if event.time_s < until_s]
    offered = 3600.0 * resource_integral(events, until_s) * problem.gpus_per_node
    places = {job.id: place for place, job in enumerate(jobs)}
    trained = sum(record.samples / table.rate(places[record.job], 1) for record in records)
    return IdleNodesRun(
        seconds,
        len(ends),
        trained / offered,
        sum(record.preemption_samples for record in records),
        sum(record.rescale_samples for record in records),
    )


INSTANCES = 300
_MAX_MODELS, _MAX_GPUS = 5, 9
_EXACT = 1e-9
_PUBLISHED_RATES = (20.0, 180.0)
"""Samples/s on one GPU: those of the published networks."""


@dataclass(frozen=True, slots=True)
class FleetGap:
    """How far FLEET is from the best possible, for one ensemble.

    Attributes:
        rounds: Time of greedy flotillas in the simple setting over that of the best ones.
        whole: Time of FLEET-G over the bound that no schedule can beat.
    """

    rounds: float
    whole: float


def simple_setting(problem: FleetProblem) -> FleetProblem:
    """Every flotilla ends when all of its members are done, and nothing is checkpointed."""
    return replace(problem, active_share=0.0, checkpoint_seconds=0.0)


def exact_rounds(problem: FleetProblem) -> float:
    """The shortest time in seconds in the simple setting: all flotillas and all numbers of GPUs are tried.

    Args:
        problem: The ensemble, small: each subset of its members is tried with each division of the GPUs.
    """
    simple = simple_setting(problem)
    table = rate_table(simple)

    @cache
    def best(remaining_members: frozenset[int]) -> float:
        if not remaining_members:
            return 0.0
        # Flotillas do not depend on each other: the one with the first member may go first.
        first, *others = sorted(remaining_members)
        return min(
            _fastest(simple, table, (first, *more)) + best(remaining_members - {first, *more})
            for size in range(min(len(remaining_members), simple.gpus))
            for more in combinations(others, size)
        )

    return best(frozenset(range(len(simple.models))))


def random_problem(rng: random.Random) -> FleetProblem:
    """At most 5 members on at most 9 GPUs, whose rates rise with every GPU by less than in proportion."""
    models = []
    for number in range(rng.randint(2, _MAX_MODELS)):
        single, share = rng.uniform(*_PUBLISHED_RATES), rng.uniform(0.7, 1.0)
        rates = tuple(single * count**share for count in range(1, _MAX_GPUS + 1))
        models.append(EnsembleModel(f"m{number}", rates, rng.randint(10, 24)))
    gpus = rng.randint(2, _MAX_GPUS)
    return FleetProblem(tuple(models), gpus, rng.randint(1, 4), samples_per_epoch=1000.0)


def gap(problem: FleetProblem) -> FleetGap:
    """How far FLEET is from the best possible for an ensemble."""
    greedy = fleet_global(simple_setting(problem)).seconds
    return FleetGap(greedy / exact_rounds(problem), fleet_global(problem).seconds / lower_bound(problem))


def gap_exhibit(instances: int = INSTANCES) -> Exhibit:
    """FLEET beside the best possible on random ensembles."""
    rng = random.Random(0)
    gaps = [gap(random_problem(rng)) for _ in range(instances)]
    rows: list[tuple[Cell, ...]] = [
        ("greedy flotillas in the simple setting, over the best ones", *_summary([each.rounds for each in gaps])),
        ("FLEET-G, over the bound", *_summary([each.whole for each in gaps])),
    ]
    return Exhibit(
        "gap",
        f"How far from the best possible: {instances} small random ensembles",
        ("what", "mean, %", "median, %", "most, %", "instances at the optimum"),
        round_cells(rows, 3),
        "Ours alone. 2 to 5 networks of 20 to 180 samples/s on one GPU and 10 to 24 epochs, on 2 to 9 GPUs; their "
        "rates rise with the number of GPUs to the power of 0.7 to 1. In the simple setting each network is in one "
        "flotilla, which ends when all of it are done: all flotillas with all divisions of the GPUs are tried.",
    )


def _summary(ratios: Sequence[float]) -> tuple[Cell, ...]:
    over = [100 * (ratio - 1) for ratio in ratios]
    return fmean(over), median(over), max(over), sum(ratio <= 1 + _EXACT for ratio in ratios)


def _fastest(problem: FleetProblem, table: RateTable, members: tuple[int, ...]) -> float:
    """The shortest time of a flotilla of these members."""
    work = problem.samples()
    return min(
        train_flotilla(problem, table, Flotilla(members, counts), {member: work[member] for member in members}, 0.0)[0]
        for counts in _divisions(problem.gpus, len(members))
    )


def _divisions(gpus: int, members: int) -> Iterator[tuple[int, ...]]:
    """All numbers of GPUs, at least one each."""
    if members == 0:
        yield ()
        return
    for count in range(1, gpus - members + 2):
        for rest in _divisions(gpus - count, members - 1):
            yield (count, *rest)


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
        round_cells(rows, 5),
        "Flotillas share preprocessing; with the others every network preprocesses for itself. The figure shows how "
        "many times as fast flotillas are as longest first: above 1 sharing pays. The networks ask for some 50 "
        "samples/s on one GPU each. The bound shares, too.",
        lines("Longest first over fleet", "samples/s per GPU that can be preprocessed", "times as fast", ahead),
    )


def _settings(results: FleetResults, field: str, title: str, values: tuple[float, ...]) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for value in values:
        trials = [FleetTrial("fleet", gpus, **{field: value}) for gpus in SOME_GPUS]  # type: ignore[arg-type]
        simulations = [results.one(trial) for trial in trials]
        rows.append((value, *(one.seconds for one in simulations), *(one.flotillas for one in simulations)))
    return Exhibit(
        field.replace("_", "-"),
        f"FLEET-G by {title}: seconds, and flotillas",
        (title, *_HEADS, *(f"flotillas, {head}" for head in _HEADS)),
        round_cells(rows, 5),
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
        round_cells(rows, 5),
        "Each measured rate is off by a factor with this standard deviation; members train at their true rates. "
        f"Means of {results.plan.seeds} draws.",
    )


def _unknown(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    for how in RIVALS:
        for known in (True, False):
            trials = [FleetTrial(how, gpus, epochs_known=known) for gpus in GPUS]
            rows.append((how, "known" if known else "24 believed of all", *results.seconds(trials)))
    return Exhibit(
        "epochs",
        "Seconds to train everything, where epochs are known and where they are not",
        ("how", "epochs", *(f"{gpus} GPUs" for gpus in GPUS)),
        round_cells(rows, 5),
        "Flotillas do not ask for epochs. Longest first then knows rates only.",
    )


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
    for gpus, seconds, flotillas in zip(GPUS, FLEET_SECONDS, FLOTILLAS, strict=True):
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
        round_cells(rows, 5),
        f"{_OURS} To the letter, members get GPUs beyond the number on which they are fastest; ours never does that.",
    )


def _everything(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = [(how, *(results.of(how, gpus).seconds for gpus in GPUS)) for how in _ALL]
    drawn = ("random order", "longest first", "fleet", "makespan", "lower bound")
    return Exhibit(
        "times",
        "Time to train everything, in seconds, without a limit of preprocessing",
        ("how", *(f"{gpus} GPUs" for gpus in GPUS)),
        round_cells(rows, 5),
        "The paper compares with one GPU each in random order only. Longest first needs no more than rates and "
        "epochs, and no schedule at all is faster than the bound. Makespan believes 24 epochs of every network, and "
        f"pays 30 s for each change. Random orders and homogeneous rounds are means of {results.plan.orders}.",
        lines(
            "Time to train everything",
            "GPUs",
            Axis("seconds", zero=True),
            {how: (GPUS, [results.of(how, gpus).seconds for gpus in GPUS]) for how in drawn},
            published={"fleet": (GPUS, FLEET_SECONDS)},
        ),
    )


def _spread(results: FleetResults) -> Exhibit:
    ours = results.of("fleet, to the letter", 80).lengths
    rows: list[tuple[Cell, ...]] = [
        (f"FLEET-G, flotilla {number}", *theirs, *mine)
        for number, (theirs, mine) in enumerate(zip(FLOTILLA_LENGTHS, ours, strict=False), 1)
    ]
    local = results.of("fleet-local", 80).all_lengths or (None, None)
    rows.insert(0, ("FLEET-L, all", *RUN_LENGTHS["FLEET-L"], *local))
    return Exhibit(
        "table-3",
        "Table 3: run lengths at 80 GPUs",
        ("runs", "published mean, s", "published deviation, s", "ours, s", "our deviation, s"),
        round_cells(rows),
        f"{_OURS} Networks of a flotilla end close together; the paper does not number its flotillas. "
        "On one GPU each it reports {:,.0f} ± {:,.0f} s.".format(*RUN_LENGTHS["one GPU each"]),
    )


def _speedups(results: FleetResults) -> Exhibit:
    rows: list[tuple[Cell, ...]] = []
    ours = {"homogeneous": "homogeneous", "fleet-local": "fleet-local", "fleet": "fleet, to the letter"}
    for place, gpus in enumerate(GPUS):
        base = results.of("random order", gpus).seconds
        pairs = [(SPEEDUPS[name][place], base / results.of(how, gpus).seconds) for name, how in ours.items()]
        others = [base / results.of(how, gpus).seconds for how in ("fleet", "longest first", "makespan")]
        rows.append((gpus, *(value for pair in pairs for value in pair), *others))
    heads = ["GPUs"]
    for name in ours:
        heads += [f"{name}, published", f"{name}, to the letter"]
    return Exhibit(
        "figure-5",
        "Fig. 5: speed-up over one GPU each in random order",
        (*heads, "fleet, ours", "longest first", "makespan"),
        round_cells(rows, 3),
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
            published={how: (GPUS, SPEEDUPS[name]) for name, how in ours.items()},
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
        round_cells(rows, 3),
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
        theirs = (WAITING["homogeneous"][place], WAITING["fleet"][place])
        mine = [results.of(how, gpus).waiting for how in ("homogeneous", "fleet, to the letter", "fleet")]
        rows.append((gpus, theirs[0], mine[0], theirs[1], *mine[1:]))
    return Exhibit(
        "figure-6",
        "Fig. 6: waiting for each GPU",
        ("GPUs", "homogeneous, as drawn", "ours, s", "FLEET-G, as drawn", "ours to the letter, s", "ours, s"),
        round_cells(rows, 3),
        "As drawn: the paper's axis fits its other figures only if it means hundreds of seconds. Ours counts networks "
        "that are done and wait for the end of their flotilla or round.",
    )
