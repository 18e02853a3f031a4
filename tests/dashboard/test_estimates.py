"""When a job is done, and how well idle nodes were used: figures that can be worked out by hand."""

from __future__ import annotations

import pytest

from malletrain.dashboard.columns import as_steps, at_age, change_columns, in_period, use_steps
from malletrain.dashboard.efficiency import demands, efficiency, free_rate, units_per_node
from malletrain.dashboard.eta import Eta, eta, eta_within_stays, expected_idle, idle_quantiles, why_unknown
from malletrain.dashboard.facts import CurveFact, HeldFact, JobFact, NodeFact, PointFact
from malletrain.dashboard.history import History, Minute

START = 1_000_000_020.0
CURVE = CurveFact("j1", (PointFact(1, 10.0, error=0.1), PointFact(4, 40.0, error=0.1)))


def job(**changes: object) -> JobFact:
    given: dict[str, object] = {
        "id": "j1",
        "state": "RUNNING",
        "admitted": True,
        "confirmed": frozenset({"n1", "n2"}),
        "commanded": frozenset({"n1", "n2"}),
        "max_nodes": 4,
        "target_samples": 1000,
    }
    return JobFact(**(given | changes))  # type: ignore[arg-type]


def minute(place: int, nodes: float, *, samples: float = 0.0, free: float = 0.0, covered: float = 60.0) -> Minute:
    return Minute(START + 60.0 * place, (60.0 * nodes, 0.0, 0.0, 0.0, 0.0), samples, free, covered)


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


def test_only_jobs_in_plans_with_a_known_curve_demand_nodes() -> None:
    jobs = [job(), job(id="j2"), job(id="j3", admitted=False), job(id="j4", state="FAILED")]
    curves = {name: CurveFact(name, CURVE.points) for name in ("j1", "j3", "j4")}
    assert [found.id for found in demands(jobs, curves)] == ["j1"]


def test_the_free_rate_is_the_best_division_of_the_nodes() -> None:
    steep = CurveFact("j2", (PointFact(1, 30.0), PointFact(2, 60.0), PointFact(4, 61.0)))
    known = demands([job(), job(id="j2")], {"j1": CURVE, "j2": steep})
    assert free_rate(known, 4) == pytest.approx(60.0 + 20.0)
    assert free_rate(known, 0) == 0.0
    assert free_rate((), 4) == 0.0


def test_u_is_what_was_trained_over_what_as_many_steady_nodes_would_have() -> None:
    minutes = (
        minute(0, 2.0, samples=600.0, free=1100.0),
        minute(1, 3.0, samples=900.0, free=1200.0),
        minute(2, 4.0, samples=9999.0, covered=30.0),  # not wholly known
    )
    history = History(jobs={"j1": job()}, curves={"j1": CURVE}, minutes=minutes)
    found = efficiency(history, START + 180.0)
    assert found is not None
    assert (found.seconds, found.nodes) == (120.0, pytest.approx(2.5))
    # 25 samples/s on 2.5 nodes: half-way between 20 on 2 and 30 on 3.
    assert found.achieved == pytest.approx(1500.0 / 3000.0)
    assert found.bound == pytest.approx(2300.0 / 3000.0)


def test_u_is_unknown_without_jobs_and_without_minutes() -> None:
    assert efficiency(History(), START) is None
    found = efficiency(History(minutes=(minute(0, 2.0),)), START + 60.0)
    assert found is not None
    assert (found.achieved, found.bound) == (None, None)


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


def test_u_counts_gpus_where_a_fleet_trains() -> None:
    # A member on 2 of 4 GPUs of each of two nodes, 10 samples/s per GPU; another job takes whole nodes.
    member = job(fleet="f1", max_nodes=8, confirmed=frozenset({"n1#0", "n1#1"}), commanded=frozenset({"n1#0", "n1#1"}))
    curve = CurveFact("j1", (PointFact(1, 10.0), PointFact(8, 80.0)))
    other = job(id="j2", max_nodes=2, admitted=False)
    nodes = {name: NodeFact(name, START, gpu_count=4) for name in ("n1", "n2")}
    minutes = (minute(0, 2.0, samples=2400.0, free=4800.0),)
    history = History(
        nodes=nodes, jobs={"j1": member, "j2": other}, heard_jobs=True, curves={"j1": curve}, minutes=minutes
    )
    assert units_per_node(history) == 4
    found = efficiency(history, START + 60.0)
    assert found is not None
    assert found.nodes == pytest.approx(2.0)
    assert found.achieved == pytest.approx(0.5)  # 40 of 80 samples/s
    whole = demands([job(fleet=""), member], {"j1": CURVE}, 4)[0]
    assert (whole.min_nodes, whole.max_nodes, whole.permitted_nodes) == (4, 16, (4, 8, 12, 16))
    assert [(point.nodes, point.rate) for point in whole.curve] == [(4, 10.0), (16, 40.0)]


def test_without_a_fleet_u_counts_nodes_that_have_gpus() -> None:
    assert units_per_node(History(nodes={"n1": NodeFact("n1", START, gpu_count=4)}, jobs={"j1": job()})) == 1


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
