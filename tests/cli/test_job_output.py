"""What the command shows of jobs, whole or without what belongs to their owner."""

from __future__ import annotations

import pytest

from malletrain.cli.jobs.job_output import event_dict, job_dict, metric_facts, reason_of, trained_nothing
from malletrain.cli.jobs.outlook import lost_in_words
from malletrain.job_manager.visibility import visible_to
from malletrain.runtime.access.identity import Identity, Role
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2
from tests.support.builders import job_message

HIDDEN = {"reason", "metrics", "saveError"}
HIDDEN_IN_SPEC = {"command", "workingDirectory", "environment", "family", "launchNote", "project", "arrayParameters"}


def job() -> resources_pb2.Job:
    return job_message(
        owner="ada",
        state=resources_pb2.JOB_STATE_STOPPING,
        reason="2 nodes left",
        reason_code=resources_pb2.JOB_REASON_PREEMPTED_BELOW_MINIMUM,
    )


def as_others_get_it() -> resources_pb2.Job:
    return visible_to(Identity("bob", Role.USER, "t1", 0.0, 1.0), job())


def test_a_whole_job_has_all_fields_also_empty_ones() -> None:
    found = job_dict(job())
    assert found.keys() >= HIDDEN
    assert found["spec"].keys() >= HIDDEN_IN_SPEC
    assert (found["metrics"], found["spec"]["family"], found["owner"]) == ({}, "", "ada")


def test_what_others_may_not_see_is_left_out_rather_than_empty() -> None:
    found, whole = job_dict(as_others_get_it()), job_dict(job())
    assert whole.keys() - found.keys() == HIDDEN
    assert whole["spec"].keys() - found["spec"].keys() == HIDDEN_IN_SPEC
    assert (found["owner"], found["rescales"]) == ("ada", 0)
    assert found["reasonCode"] == "PREEMPTED_BELOW_MINIMUM"


@pytest.mark.parametrize("reason", ["2 nodes left", ""])
def test_rows_of_the_journal_have_a_reason_only_where_it_is_known(reason: str) -> None:
    found = event_dict(job_manager_pb2.JobEvent(job_id="j000001", reason=reason))
    assert found.get("reason", "") == reason
    assert ("reason" in found) == bool(reason)


def test_a_metric_stands_in_place_of_no_other_row() -> None:
    assert metric_facts({"state": 1.0, "loss": 0.25}, {"state", "owner"}) == {"loss": "0.25", "metric state": "1"}


def test_in_place_of_the_reason_others_get_the_code_in_words() -> None:
    assert reason_of(job()) == "2 nodes left"
    assert reason_of(as_others_get_it()) == "preempted below minimum"
    assert reason_of(resources_pb2.Job()) == "", "recorded by version 0.1.0, and somebody else's"


def test_a_job_that_is_complete_by_its_exit_status_alone_may_have_trained_nothing() -> None:
    ended = {"state": resources_pb2.JOB_STATE_COMPLETED, "reason_code": resources_pb2.JOB_REASON_EXITED}
    assert trained_nothing(resources_pb2.Job(**ended))
    assert lost_in_words(resources_pb2.Job(**ended), monitor_pb2.Progress()) == "no batch was reported"
    assert not trained_nothing(resources_pb2.Job(**ended, samples=1))
    for change in ({"state": resources_pb2.JOB_STATE_FAILED}, {"reason_code": resources_pb2.JOB_REASON_TRAINER_DONE}):
        assert not trained_nothing(resources_pb2.Job(**(ended | change)))
