"""How far jobs are and how much longer they take, as the command says it."""

from __future__ import annotations

import pytest

from malletrain.cli.jobs.outlook import Known, eta_in_words, outlook, outlook_dict, rate_in_words, samples_in_words
from malletrain.observer.job_facts import CurveFact, PointFact, ProgressFact
from malletrain.v1 import resources_pb2
from tests.support.builders import job_message

CURVE = CurveFact("j000001", (PointFact(1, 10.0, error=0.1), PointFact(4, 40.0, error=0.1)))
PROGRESS = ProgressFact("j000001", samples=200, rate=19.0, nodes=2)


def job(**changes: object) -> resources_pb2.Job:
    return job_message("j000001", "n1", "n2", **{"target_samples": 1000, "samples": 100} | changes)


def known(**changes: object) -> Known:
    given: dict[str, object] = {"progress": {"j000001": PROGRESS}, "curves": {"j000001": CURVE}, "stays": [0.0] * 4}
    return Known(**(given | changes))


def test_the_newest_samples_rate_and_time_left_are_told() -> None:
    found = outlook(job(), known())
    assert (found.samples, found.share, found.rate, found.unknown) == (200, 0.2, 19.0, "")
    # 800 samples at 20 samples/s, at 22 and at 18: nodes whose stay is not known count as those that stay.
    assert outlook_dict(found) | {"samples": 0} == {
        "samples": 0,
        "share": 0.2,
        "rate": 19.0,
        "expectedSeconds": pytest.approx(40.0),
        "soonestSeconds": pytest.approx(800 / 22),
        "latestSeconds": pytest.approx(800 / 18),
        "unknown": "",
    }
    assert eta_in_words(found) == "40s (36s to 44s)"
    assert (samples_in_words(found, 1000), rate_in_words(found)) == ("200 / 1,000 (20%)", "19.0")


def test_nodes_that_are_expected_to_leave_make_it_later() -> None:
    # Of four nodes two stay for a quarter of the 40 s: 2.5 on average, of which the job has half: one node, at 9.
    assert outlook_dict(outlook(job(), known(stays=[10.0, 10.0, 100.0, 100.0])))["latestSeconds"] == pytest.approx(
        800 / 9
    )
    assert outlook_dict(outlook(job(), known(stays=[0.1] * 4)))["latestSeconds"] is None
    assert eta_in_words(outlook(job(), known(stays=[0.1] * 4))) == "40s (36s to open)"


@pytest.mark.parametrize(
    ("changes", "facts", "why"),
    [
        ({"spec": resources_pb2.JobSpec(name="a", min_nodes=1, max_nodes=4)}, {}, "no target"),
        ({"commanded_nodes": [], "confirmed_nodes": []}, {}, "no nodes"),
        ({"state": resources_pb2.JOB_STATE_COMPLETED}, {}, "ended"),
        ({}, {"curves": {}, "progress": {}}, "curve not known"),
        ({}, {"curves": None, "progress": None}, "the Profiler does not answer"),
        ({"commanded_nodes": ["n1"], "confirmed_nodes": []}, {"curves": {}}, "curve not known"),
    ],
)
def test_what_is_not_known_has_a_reason(changes: dict[str, object], facts: dict[str, object], why: str) -> None:
    found = outlook(job(**changes), known(**facts))
    assert (found.left, found.unknown) == (None, why)
    assert eta_in_words(found) == f"unknown: {why}"
    assert outlook_dict(found)["expectedSeconds"] is None


def test_without_a_curve_a_job_goes_on_at_its_measured_rate() -> None:
    found = outlook(job(), known(curves={}))
    assert eta_in_words(found) == "42s"
    assert outlook_dict(found)["latestSeconds"] is None


def test_members_of_a_fleet_are_not_judged_by_nodes() -> None:
    found = outlook(job(fleet_id="f000001", confirmed_nodes=["n1#0"], commanded_nodes=["n1#0"]), known())
    assert found.left is not None
    assert (found.left.expected, found.left.soonest) == (pytest.approx(800 / 19), None)


def test_services_that_do_not_answer_leave_what_jobmanager_knows() -> None:
    found = outlook(job(), Known(None, {"j000001": CURVE}, None))
    assert (found.samples, found.rate, rate_in_words(found)) == (100, None, "-")
    assert found.left is not None
    assert found.left.latest == pytest.approx(900 / 18)


def test_a_job_that_has_no_nodes_has_no_rate() -> None:
    assert outlook(job(confirmed_nodes=[]), known()).rate is None
