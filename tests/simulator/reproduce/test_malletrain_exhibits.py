"""MalleTrain's exhibits that need no replays of whole systems: where idle nodes are, scaling, the cost of profiles."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from malletrain.profiler.machine.options import ProfilingMode
from malletrain.reproduce.malletrain.exhibits import (
    Scatter,
    StartScore,
    StartTrial,
    cabinet_of,
    fragments_exhibit,
    gaps_exhibit,
    largest_difference,
    lengths_exhibit,
    scaling_exhibit,
    scatter_of,
    start_exhibit,
    start_score,
)
from malletrain.reproduce.malletrain.systems import Mix, WorkloadKind
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.options import ReplayOptions
from tests.simulator.replay.builders import idle

HOUR = 3600.0


def test_names_say_cabinets_where_they_do() -> None:
    assert [cabinet_of(name) for name in ("c05n06", "x12a3n14", "n001", "login")] == ["c05", "x12a3", None, None]


def test_scattered_nodes_are_counted_by_cabinet() -> None:
    sizes = Counter({"c1": 4, "c2": 4, "c3": 2})
    assert scatter_of(["c1n1", "c1n2", "c2n1", "c3n2"], sizes) == Scatter(idle=4, cabinets=3, fewest=1, alone=2)
    assert scatter_of([f"c1n{n}" for n in range(4)] + ["c2n1"], sizes) == Scatter(5, 2, 2, 1)


def test_each_hour_has_its_nodes_and_other_names_have_no_exhibit() -> None:
    fragments = {"c1n1": [(0.0, 3 * HOUR)], "c1n2": [(1.5 * HOUR, 3 * HOUR)], "c2n1": [(0.5 * HOUR, 1.5 * HOUR)]}
    exhibit = fragments_exhibit(Scenario.of(idle(fragments, 3 * HOUR), 3 * HOUR))
    assert exhibit is not None
    assert exhibit.rows == ((0.0, 1, 1, 1, 1), (1.0, 2, 2, 1, 2), (2.0, 2, 1, 1, 0))
    assert exhibit.figure is not None
    exhibit.figure.figure()
    plain = {"n1": [(0.0, HOUR)], "n2": [(0.0, HOUR)]}
    assert fragments_exhibit(Scenario.of(idle(plain, HOUR), HOUR)) is None


def test_speedups_are_those_of_the_published_curves() -> None:
    rows = scaling_exhibit().rows
    assert len(rows) == 7 * 6
    assert all(row[3] == 1 for row in rows if row[1] == 1)
    assert ("DenseNet", 32, 28800.0, 28.8, 90.0) in rows


def test_always_against_never_is_compared_seed_by_seed() -> None:
    always = [
        StartScore((90.0, 220.0), 2, 100.0, 800.0, 80.0, 1.0),
        StartScore((80.0, 230.0), 1, 200.0, 600.0, 40.0, 2.0),
    ]
    never = [StartScore((100.0, 200.0)), StartScore((100.0, 200.0))]
    exhibit = start_exhibit(always, never)
    assert [row[:2] for row in exhibit.rows] == [(0.5, -15.0), (1.0, 12.5)]
    assert (
        "A profile took 150 s in the mean, 700 node-seconds, of which 60 stood still, and 1.5 growths."
        in exhibit.remark
    )


@pytest.mark.parametrize("mode", [ProfilingMode.ALWAYS, ProfilingMode.NEVER])
def test_a_replay_says_what_its_profiles_cost(mode: ProfilingMode) -> None:
    scenario = Scenario.of(idle({f"n{n}": [(0.0, 2 * HOUR)] for n in range(8)}, 2 * HOUR), 2 * HOUR)
    mix = Mix(WorkloadKind.NAS, 1, 1e9, 3)
    score = start_score(scenario, StartTrial(mode, mix, ReplayOptions(duration_s=2 * HOUR)))
    assert len(score.samples) == 3
    assert list(score.samples) == sorted(score.samples)
    assert (score.profiles > 0) is (mode is ProfilingMode.ALWAYS)
    assert (score.node_seconds > score.stalled > 0) is (mode is ProfilingMode.ALWAYS)


def _days(count: int) -> dict[str, list[tuple[float, float]]]:
    """Nodes that are idle for 100 s and busy for 300 s, each with another phase."""
    return {
        f"n{node}": [(begin, begin + 100.0) for begin in range(50 + 7 * node, int(24 * HOUR), 400)]
        for node in range(count)
    }


def test_gaps_between_events_stand_beside_those_of_a_generated_polaris() -> None:
    exhibit = gaps_exhibit(idle(_days(5), 24 * HOUR), random.Random(0))
    assert exhibit is not None
    by_limit = {row[0]: row[1:] for row in exhibit.rows}
    assert by_limit[10.0][0] == pytest.approx(0.8, abs=0.01)  # four of five gaps have 7 s
    assert float(by_limit[10.0][1] or 0) > 0.5  # published of Polaris
    assert exhibit.figure is not None
    exhibit.figure.figure()
    assert gaps_exhibit(idle({"n1": [(0.0, HOUR)]}, HOUR), random.Random(0)) is None


def test_fragments_of_synthetic_traces_are_as_long_as_those_of_the_log() -> None:
    exhibit = lengths_exhibit(idle(_days(20), 24 * HOUR), np.random.default_rng(0))
    by_bin = {row[0]: row[1:] for row in exhibit.rows}
    assert all(float(share or 0) > 0.98 for share in by_bin["60 to 300"])  # but those cut at the ends
    assert [len(row) for row in exhibit.rows] == [4] * 10


def test_the_distance_of_two_distributions() -> None:
    first = np.array([1.0, 2.0, 3.0, 4.0])
    assert largest_difference(first, first[::-1]) == 0
    assert largest_difference(first, first + 10) == 1
    assert largest_difference(first, np.array([1.0, 2.0, 3.0, 9.0])) == 0.25
