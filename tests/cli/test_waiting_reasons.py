"""What commands say about jobs that wait for nodes."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.cli.waiting_reasons import drains, too_large
from malletrain.v1 import resources_pb2, scavenger_pb2


def job(job_id: str, least: int, state: resources_pb2.JobState) -> resources_pb2.Job:
    return resources_pb2.Job(id=job_id, state=state, spec=resources_pb2.JobSpec(min_nodes=least))


def test_a_job_that_is_larger_than_what_is_idle_is_named() -> None:
    waiting, running = resources_pb2.JOB_STATE_WAITING, resources_pb2.JOB_STATE_RUNNING
    jobs = [job("j1", 9, waiting), job("j2", 4, waiting), job("j3", 9, running)]
    assert too_large(jobs, 4) == ["j1 needs 9 nodes at least; idle now: 4"]


def test_drains_say_who_and_why() -> None:
    all_nodes = scavenger_pb2.DrainedNode(user="ada", reason="new\nswitch", since=Timestamp(seconds=100))
    one = scavenger_pb2.DrainedNode(name="n1", user="eve", since=Timestamp(seconds=100))
    first, second = drains([all_nodes, one], 160.0)
    assert first.startswith("drained: all nodes, by ada, 1m 00s ago: new")
    assert "\n" not in first
    assert second == "drained: n1, by eve, 1m 00s ago"
