"""When a job is done, and how well idle nodes were used, as pages say it: figures that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.dashboard.figures.columns import (
    as_steps,
    at_age,
    change_columns,
    in_period,
    sample_columns,
    use_steps,
)
from malletrain.dashboard.pages.now_views import now_tiles
from malletrain.observer.eta import Eta, eta, eta_within_stays, expected_idle, idle_quantiles, why_unknown
from malletrain.observer.facts import HeldFact
from malletrain.observer.history import KEPT_S, History, Minute
from malletrain.observer.job_facts import CurveFact, JobFact, PointFact
from malletrain.observer.updates import utilization_recorded
from tests.support.builders import job_fact

START = 1_000_000_020.0
CURVE = CurveFact("j1", (PointFact(1, 10.0, error=0.1), PointFact(4, 40.0, error=0.1)))


def job(**changes: object) -> JobFact:
    return job_fact("j1", "n1", "n2", **changes)


def minute(place: int, nodes: float) -> Minute:
    return Minute(START + 60.0 * place, (60.0 * nodes, 0.0, 0.0, 0.0, 0.0))


def used(place: int, trained: float, free: float = 80.0, static: float = 100.0) -> MinuteUse:
    return MinuteUse(START + 60.0 * place, 4.0, trained, free, static)


def test_quantiles_of_idle_nodes_leave_out_the_worst_and_the_best_tenth() -> None:
    assert idle_quantiles([]) is None
    assert idle_quantiles([minute(place, 10.0 - place) for place in range(11)]) == pytest.approx((1.0, 9.0))


def test_an_eta_has_the_scale_of_now_and_an_interval() -> None:
    found = eta(job(), CURVE, 200, 4, (2.0, 8.0))
    # 800 samples: on 2 nodes, on 4 (half of 8) at the upper end, on 1 (half of 2) at the lower end.
    assert found == Eta(pytest.approx(40.0), pytest.approx(800 / 44.0), pytest.approx(800 / 9.0))


def test_an_eta_is_open_where_the_worst_tenth_leaves_too_few_nodes() -> None:
    found = eta(job(min_nodes=2), CURVE, 0, 4, (2.0, 4.0))
    assert found is not None
    assert found.latest is None
    assert found.expected == pytest.approx(50.0)


def test_an_eta_keeps_to_permitted_scales() -> None:
    found = eta(job(permitted=(1, 2, 4)), CURVE, 0, 4, (2.0, 6.0))
    assert found is not None
    assert found.soonest == pytest.approx(1000 / 22.0)  # half of 6 is 3, which is not permitted


def test_a_job_that_waits_has_no_eta_of_its_scale() -> None:
    waits = job(state="WAITING", confirmed=frozenset(), commanded=frozenset())
    assert eta(waits, CURVE, 0, 4, (2.0, 4.0)) == Eta(None, None, None)


@pytest.mark.parametrize("changes", [{"target_samples": 0}, {"state": "COMPLETED"}])
def test_without_a_target_or_after_the_end_there_is_no_eta(changes: dict[str, object]) -> None:
    assert eta(job(**changes), CURVE, 0, 4, None) is None
    assert eta(job(), None, 0, 4, None) is None


def test_more_samples_than_the_target_leave_nothing() -> None:
    found = eta(job(), CURVE, 5000, 4, None)
    assert found is not None
    assert found.expected == 0.0


def test_u_on_the_page_is_of_the_last_hour_and_beside_its_bound() -> None:
    minutes = tuple(used(place, 70.0 if place < 10 else 40.0) for place in range(70))
    history = replace(History(utilization=minutes), now=START + 60.0 * 71)
    tiles = {name: (value, note) for name, value, note in now_tiles(history, START, history.now)}
    assert tiles["U"] == ("40.0 %", "of the last 1 h 00 min")
    assert tiles["U if rescaling were free"][0] == "80.0 %"
    unknown = {name: value for name, value, _ in now_tiles(History(), START, START)}
    assert (unknown["U"], unknown["U if rescaling were free"]) == ("–", "–")


def test_minutes_that_are_recorded_join_those_that_are_known_and_old_ones_go() -> None:
    history = replace(History(utilization=(used(0, 1.0), used(1, 2.0))), now=START + 60.0)
    found = utilization_recorded(history, [used(1, 3.0), used(2, 4.0)])
    assert [minute.trained for minute in found.utilization] == [1.0, 3.0, 4.0]
    later = utilization_recorded(replace(found, now=START + KEPT_S + 121.0), [used(1441, 5.0)])
    assert [minute.trained for minute in later.utilization] == [4.0, 5.0]


def test_samples_by_minute_are_those_of_u() -> None:
    assert sample_columns([used(0, 30.0, 60.0, 120.0)]) == {
        "time": [1000.0 * START],
        "trained": [0.5],
        "free": [1.0],
        "static": [2.0],
    }


def test_idle_nodes_are_expected_to_leave() -> None:
    assert expected_idle([0.0, 10.0, 40.0], 20.0) == pytest.approx(1.0 + 0.5 + 1.0)
    assert expected_idle([5.0, 5.0], 0.0) == 2.0


def test_what_was_idle_before_is_not_needed_for_an_interval() -> None:
    found = eta_within_stays(job(), CURVE, 200, [10.0, 10.0, 100.0, 100.0])
    # 40 s on 2 nodes; of 4 nodes 2.5 are left on average, of which it has one.
    assert found == Eta(pytest.approx(40.0), pytest.approx(800 / 22.0), pytest.approx(800 / 9.0))
    assert eta_within_stays(job(), None, 200, [0.0]) is None
    assert eta_within_stays(job(), None, 200, [0.0], rate=20.0) == Eta(pytest.approx(40.0), None, None)


def test_why_an_eta_is_unknown() -> None:
    waits = job(state="WAITING", confirmed=frozenset(), commanded=frozenset())
    assert why_unknown(waits, CURVE, eta(waits, CURVE, 0, 4, None)) == "no nodes"
    assert why_unknown(job(), CURVE, eta(job(), CURVE, 0, 4, None)) == ""
    assert why_unknown(job(), CurveFact("j1", (PointFact(1, 0.0),)), Eta(None, None, None)) == "no rate at this scale"


def test_minutes_are_steps_that_end_where_minutes_are_missing() -> None:
    found = as_steps({"time": [0.0, 60_000.0, 240_000.0], "nodes": [1.0, 2.0, 3.0]}, 0.0, until=270.0)
    assert found["time"] == [0.0, 60_000.0, 120_000.0, 120_000.0, 240_000.0, 270_000.0]
    assert found["nodes"] == [1.0, 2.0, 2.0, 0.0, 3.0, 3.0]
    assert as_steps({"time": [], "nodes": []}, 0.0) == {"time": [], "nodes": []}


def test_there_is_a_row_of_uses_before_the_first_minute() -> None:
    found = use_steps(History())
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(
        ("time", "training", "booting", "stalled", "stopping", "unassigned"), 1
    )


def test_the_age_of_a_node_is_a_point_of_the_curves() -> None:
    curves = {"seconds": [0.0, 10.0, 20.0], "share": [1.0, 0.5, 0.4], "stay": [30.0, 40.0, 20.0]}
    assert at_age(curves, 15.0) == {"seconds": [15.0], "share": [0.45], "stay": [30.0]}
    for age in (-1.0, 21.0):
        assert at_age(curves, age) == {"seconds": [], "share": [], "stay": []}
    assert at_age({}, 1.0)["seconds"] == []


def test_exported_rows_are_those_of_the_period() -> None:
    rows = [HeldFact(10.0, "j1", frozenset({"n1#0", "n1#1"})), HeldFact(20.0, "j1", frozenset({"n1#1", "n2#0"}))]
    found = change_columns([*rows, HeldFact(30.0, "j1", frozenset({"n1#1"}))])
    assert found == {"time": [10_000.0, 30_000.0], "nodes": [2, 1]}
    assert in_period(found, 20.0, 40.0) == {"unix_s": [30.0], "nodes": [1]}
    assert in_period({"nodes": [1]}, 0.0, 1.0) == {"nodes": [1]}
