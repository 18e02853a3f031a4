from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import EnsembleModel, FleetProblem, Pace
from malletrain.fleet.rates import rate_table
from malletrain.reproduce.fleet.exhibits import by_allocator, most_idle
from malletrain.simulator.fleet.idle_nodes import (
    STALL_S,
    ByRemainingWork,
    Division,
    FleetMoment,
    GpuDivider,
    InFlotillas,
    OneEach,
    train_on_idle_nodes,
)
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.node_events import NodeEvent

LINEAR = FleetProblem(
    models=tuple(
        EnsembleModel(name, (rate, 2 * rate), epochs)
        for name, rate, epochs in (("a", 60.0, 4), ("b", 50.0, 2), ("c", 30.0, 3))
    ),
    gpus=8,
    gpus_per_node=2,
    samples_per_epoch=6000.0,
    checkpoint_seconds=10.0,
)
TABLE = rate_table(LINEAR)
NODES = ("n0", "n1", "n2", "n3")
LONG_S = 100_000.0


def joined(at_s: float, *names: str) -> NodeEvent:
    return NodeEvent(at_s, tuple((name, at_s) for name in names), ())


def dividers(problem: FleetProblem) -> dict[str, GpuDivider]:
    table = rate_table(problem)
    return {"fleet": InFlotillas(problem, table), "makespan": ByRemainingWork(table), "list": OneEach(table)}


def test_one_gpu_each_on_nodes_that_stay() -> None:
    run = train_on_idle_nodes(LINEAR, TABLE, OneEach(TABLE), [joined(100.0, "n0")], LONG_S)
    # c and a first: 600 s and 400 s after their stalls. Then b on the GPU of a.
    assert run.seconds == pytest.approx(100 + 400 + 240 + 2 * STALL_S)
    assert run.preemption_samples == 0
    assert run.rescale_samples == pytest.approx(STALL_S * (60 + 50 + 30))
    # Two GPUs were offered from second 100 on.
    assert run.utilisation == pytest.approx((400 + 240 + 600) / (2 * (400 + 240 + 2 * STALL_S)))


def test_a_node_that_leaves_takes_what_was_done_since_the_last_commit() -> None:
    one = replace(LINEAR, models=LINEAR.models[:1])
    events = [joined(0.0, "n0"), NodeEvent(STALL_S + 103.0, (), ("n0",)), joined(200.0, "n1")]
    run = train_on_idle_nodes(one, rate_table(one), OneEach(rate_table(one)), events, LONG_S)
    assert run.preemption_samples == pytest.approx(3 * 60)
    assert run.seconds == pytest.approx(200 + STALL_S + 300)


def test_nothing_is_done_without_nodes_and_a_short_trace_ends_undone() -> None:
    run = train_on_idle_nodes(LINEAR, TABLE, OneEach(TABLE), [joined(0.0, "n0"), NodeEvent(9.0, (), ("n0",))], 50.0)
    assert (run.seconds, run.done, run.utilisation) == (None, 0, 0.0)


def test_a_flotilla_goes_on_where_a_node_leaves_and_grows_where_that_is_worth_it() -> None:
    two = replace(LINEAR, models=LINEAR.models[:2], pace=Pace.OWN)
    flotillas = InFlotillas(two, rate_table(two))
    work = dict(enumerate(two.samples()))
    first = flotillas.divide(FleetMoment(work, {}, 4))
    assert (sum(first.counts.values()), first.restarts, first.stall_s) == (4, True, 10.0)
    # Each member loses a GPU: the same two go on.
    less = flotillas.divide(FleetMoment(work, {0: 1, 1: 1}, 2))
    assert (less.counts, less.restarts) == ({0: 1, 1: 1}, False)
    assert flotillas.divide(FleetMoment(work, less.counts, 8)).counts == {0: 4, 1: 4}
    assert flotillas.divide(FleetMoment(work, {}, 0)).counts == {}


class Watched:
    """A divider whose divisions are checked."""

    def __init__(self, divider: GpuDivider) -> None:
        self._divider, self.every_s = divider, divider.every_s

    def divide(self, moment: FleetMoment) -> Division:
        assert sum(moment.counts.values()) <= moment.gpus
        division = self._divider.divide(moment)
        assert sum(division.counts.values()) <= moment.gpus
        assert all(count >= 1 for count in division.counts.values())
        assert division.counts.keys() <= moment.work.keys()
        assert division.counts or not moment.gpus
        return division

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        return self._divider.speeds(rates)


@settings(max_examples=60)
@given(
    changes=st.lists(st.tuples(st.integers(1, 300), st.sets(st.sampled_from(NODES), min_size=1)), max_size=12),
    pace=st.sampled_from(Pace),
)
def test_whatever_nodes_do_members_end_and_gpus_are_given_once(changes: list[tuple[int, set[str]]], pace: Pace) -> None:
    events, now, idle = [joined(0.0, *NODES)], 0.0, set(NODES)
    for seconds, names in changes:
        now += seconds
        events.append(NodeEvent(now, tuple((name, now) for name in sorted(names - idle)), tuple(sorted(names & idle))))
        idle ^= names
    events.append(joined(now + 1.0, *sorted(set(NODES) - idle)))
    problem = replace(LINEAR, pace=pace)
    for name, divider in dividers(problem).items():
        run = train_on_idle_nodes(problem, TABLE, Watched(divider), events, LONG_S)
        assert run.done == 3, name
        assert run.seconds is not None
        assert run.seconds >= lower_bound(problem), name
        assert 0 < run.utilisation <= 1 + 1e-9, name


def test_the_allocator_trains_the_same_ensemble() -> None:
    scenario = Scenario(NODES, (joined(0.0, *NODES[:2]), joined(50.0, *NODES[2:])), LONG_S)
    assert most_idle(scenario.events) == 4
    run = by_allocator(LINEAR, TABLE, scenario)
    assert run.done == 3
    assert run.seconds is not None
    assert run.seconds >= lower_bound(LINEAR)
    assert 0 < run.utilisation <= 1
