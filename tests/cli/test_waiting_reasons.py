"""What commands say about jobs that wait for nodes."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.cli.jobs.waiting_reasons import drains, quarantines, too_large
from malletrain.v1 import resources_pb2, scavenger_pb2
from tests.support.builders import job_message

QUEUED = resources_pb2.JOB_STATE_QUEUED
LARGE = (("j1", 9), ("j4", 5))


def test_a_job_that_is_larger_than_what_is_idle_is_named() -> None:
    waiting, running = resources_pb2.JOB_STATE_WAITING, resources_pb2.JOB_STATE_RUNNING
    jobs = [
        job_message("j1", min_nodes=9, state=waiting),
        job_message("j2", min_nodes=4, state=waiting),
        job_message("j3", min_nodes=9, state=running),
        job_message("j4", min_nodes=5, state=QUEUED),
    ]
    assert too_large(jobs, 4) == [f"{name} needs {count} nodes at least; idle now: 4" for name, count in LARGE]


def test_drains_say_who_and_why() -> None:
    all_nodes = scavenger_pb2.DrainedNode(user="ada", reason="new\nswitch", since=Timestamp(seconds=100))
    one = scavenger_pb2.DrainedNode(name="n1", user="eve", since=Timestamp(seconds=100))
    first, second = drains([all_nodes, one], 160.0)
    assert first.startswith("drained: all nodes, by ada, 1m 00s ago: new")
    assert "\n" not in first
    assert second == "drained: n1, by eve, 1m 00s ago"


def test_quarantines_say_why_by_whom_until_when_and_what_ends_them() -> None:
    until = Timestamp(seconds=1900)
    entry = scavenger_pb2.QuarantinedNode(name="n1", until=until, failures=3, reason="fails\nhere", by="j1 (ada)")
    (line,) = quarantines([entry], 100.0)
    assert line == (
        "quarantined: n1 for another 30m 00s, after 3 failures, by j1 (ada): fails here; malletrain resume n1 ends it"
    )
