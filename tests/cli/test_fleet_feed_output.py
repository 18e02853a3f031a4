"""What `fleet status` says of feeds, of members that wait, and of those that have converged."""

from __future__ import annotations

import pytest

from malletrain.cli.fleet.live import describe_convergence, feed_dict, feed_in_words, waiting_in_words, waiting_members
from malletrain.v1 import monitor_pb2, resources_pb2
from tests.support.builders import job_message


def progress(received: int, prepared: int, cpu_seconds: float = 0.0, processes: int = 0) -> monitor_pb2.Progress:
    feed = monitor_pb2.FeedReport(
        received_samples=received, prepared_samples=prepared, cpu_seconds=cpu_seconds, processes=processes
    )
    return monitor_pb2.Progress(job_id="j1", feed=feed)


def running(number: int, **rates: float) -> monitor_pb2.Progress:
    found = progress(90, 10, 0.004, 4)
    found.feed.running = number
    measured = ((int(name[1:]), rate) for name, rate in rates.items())
    found.feed.rates.extend(monitor_pb2.PreparingRate(processes=n, rate=rate) for n, rate in measured)
    return found


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
        "processes": 0,
        "measuredRates": {},
    }
    told = feed_in_words(found)
    assert told == "feed: prepares up to 450.0 samples/s on a node, 225.0 on a core; 75% of the samples came from it"


def test_how_many_prepare_is_told_with_what_was_measured() -> None:
    found = [running(2, n1=240, n2=410), running(2, n1=250, n2=430, n4=700), running(4)]
    feed = feed_dict(found)
    assert feed is not None
    assert feed["processes"] == 2
    assert feed["measuredRates"] == {"1": 245, "2": 420, "4": 700}
    told = feed_in_words(found).split("; ")[-1]
    assert told == "2 prepare now (measured: 245.0 samples/s by 1, 420.0 samples/s by 2, 700.0 samples/s by 4)"
    assert feed_in_words([running(1)]).endswith("; 1 prepare now")


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
    assert [describe_convergence(each) for each in jobs] == ["-", "-", "yes", "at max_epochs", "-"]
