"""What `fleet status` says of feeds, of members that wait, and of those that have converged."""

from __future__ import annotations

import pytest

from malletrain.cli.fleet.live import converged, feed_dict, feed_in_words, waiting_in_words, waiting_members
from malletrain.v1 import monitor_pb2, resources_pb2
from tests.support.builders import job_message


def progress(received: int, prepared: int, cpu_seconds: float = 0.0, processes: int = 0) -> monitor_pb2.Progress:
    feed = monitor_pb2.FeedReport(
        received_samples=received, prepared_samples=prepared, cpu_seconds=cpu_seconds, processes=processes
    )
    return monitor_pb2.Progress(job_id="j1", feed=feed)


def job(name: str, state: str, *gpus: str, code: str = "UNSPECIFIED") -> resources_pb2.Job:
    reason = resources_pb2.JobReason.Value(f"JOB_REASON_{code}")
    return job_message(name, *gpus, name=name, state=f"JOB_STATE_{state}", reason_code=reason)


def test_what_feeds_can_prepare_is_told_by_core_and_by_node() -> None:
    found = [progress(90, 10, 0.004, 2), progress(60, 40, 0.005, 2), monitor_pb2.Progress(job_id="j3")]
    assert feed_dict(found) == {
        "ratePerCore": pytest.approx(225),
        "ratePerNode": pytest.approx(450),
        "receivedSamples": 150,
        "preparedSamples": 50,
    }
    told = feed_in_words(found)
    assert told == "feed: prepares up to 450.0 samples/s on a node, 225.0 on a core; 75% of the samples came from it"


def test_what_is_not_known_is_said() -> None:
    assert feed_dict([monitor_pb2.Progress(job_id="j1")]) is None
    assert feed_in_words([monitor_pb2.Progress(job_id="j1")]) == ""
    told = feed_in_words([progress(0, 8)])
    assert told == "feed: what it can prepare is not known yet; 0% of the samples came from it"


def test_who_waits_and_who_has_converged() -> None:
    jobs = [
        job("a", "RUNNING", "n1#0"),
        job("b", "WAITING"),
        job("c", "COMPLETED", code="TRAINER_DONE"),
        job("d", "COMPLETED", code="TARGET_REACHED"),
        job("e", "FAILED"),
    ]
    assert waiting_members(jobs) == ["b"]
    assert waiting_in_words(jobs) == "waiting for GPUs: b"
    assert waiting_in_words(jobs[:1]) == ""
    many = [job(str(number), "QUEUED") for number in range(10)]
    assert waiting_in_words(many).endswith("6, 7 and 2 more")
    assert [converged(each) for each in jobs] == ["-", "-", "yes", "at max_epochs", "-"]
