"""The published ensemble on idle nodes."""

from __future__ import annotations

import pytest

from malletrain.reproduce.fleet.exhibits import most_idle, trace_exhibit
from malletrain.reproduce.fleet.trials import FleetTrial, run_fleet_trial
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.node_events import NodeEvent

NODES = tuple(f"n{number}" for number in range(20))
ALL_JOIN = NodeEvent(0.0, tuple((name, 0.0) for name in NODES), ())
PLANNERS = ["fleet", "makespan", "list", "milp"]


def rows(scenario: Scenario) -> dict[str, dict[str, float | None]]:
    """The rows of the exhibit by planner, and their cells by column."""
    exhibit = trace_exhibit(scenario)
    found = {str(row[0]): dict(zip(exhibit.columns[1:], row[1:], strict=True)) for row in exhibit.rows}
    assert list(found) == PLANNERS
    return found  # type: ignore[return-value]


def test_on_nodes_that_stay_it_takes_as_long_as_on_gpus_of_its_own() -> None:
    found = rows(Scenario(NODES, (ALL_JOIN,), 200_000.0))
    bound, longest_first, flotillas = (
        run_fleet_trial(FleetTrial(how, 80)).seconds for how in ("lower bound", "longest first", "fleet")
    )
    for row in found.values():
        seconds = row["time to train, s"]
        assert seconds is not None
        assert seconds >= bound
        assert (row["networks done"], row["samples lost to leaves"]) == (100, 0)
        assert 0 < (row["utilisation, %"] or 0) <= 100
    # A member that begins stalls for 30 s here; a flotilla writes checkpoints for as long.
    assert found["list"]["time to train, s"] == pytest.approx(longest_first + 30, abs=5)
    assert found["fleet"]["time to train, s"] == pytest.approx(flotillas, rel=0.02)
    assert (found["makespan"]["time to train, s"] or 0) <= run_fleet_trial(FleetTrial("makespan", 80)).seconds * 1.01


def test_nodes_that_leave_cost_samples_and_what_is_not_done_has_no_time() -> None:
    half = NodeEvent(600.5, (), NODES[:10])
    back = NodeEvent(1200.5, tuple((name, 1200.5) for name in NODES[:10]), ())
    found = rows(Scenario(NODES, (ALL_JOIN, half, back), 3000.0))
    for row in found.values():
        assert row["time to train, s"] is None
        assert (row["networks done"] or 0) < 100
        assert (row["samples lost to leaves"] or 0) > 0
        assert (row["to rescaling"] or 0) > 0
    assert most_idle((ALL_JOIN, half, back)) == 20
