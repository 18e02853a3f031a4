"""Conversions of the messages that the Allocator receives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.allocator.machine.cluster_cache import CachedJob
from malletrain.allocator.problem.allocation_problem import AllocationProblem, Assignment, JobDemand
from malletrain.allocator.problem.planner import PlannableJob, PlannableNode
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.allocator.wire import messages
from malletrain.model.goodput import GradientNoise
from malletrain.model.job_state import JobState
from malletrain.model.scaling import RescaleStall, ScalingPoint
from malletrain.v1 import profiler_pb2, resources_pb2


def test_a_node() -> None:
    message = resources_pb2.Node(name="n1", expected_stay_seconds=9.0, pool="gpu")
    assert messages.node_from_proto(message) == PlannableNode("n1", 9.0, "gpu")


def test_a_job() -> None:
    spec = resources_pb2.JobSpec(
        command=["venv/bin/python", "-u", "train.py"],
        working_directory="/home/ada",
        backend=resources_pb2.LAUNCHER_BACKEND_TORCHRUN,
        cold_start=True,
        min_nodes=2,
        max_nodes=8,
        permitted_nodes=[2, 8],
    )
    message = resources_pb2.Job(
        id="j1",
        spec=spec,
        state=resources_pb2.JOB_STATE_WAITING,
        admitted=True,
        commanded_nodes=["n1"],
        wanted_nodes=["n2"],
        not_before=Timestamp(seconds=100),
        plan_generation=3,
    )
    plannable = PlannableJob("j1", 2, 8, ("n1",), permitted_nodes=(2, 8), wanted_nodes=("n2",))
    assert messages.job_from_proto(message) == CachedJob(
        plannable, JobState.WAITING, True, 100.0, 3, environment="/home/ada/venv/bin/python torchrun cold"
    )
    message.ClearField("not_before")
    assert messages.job_from_proto(message).not_before is None
    message.MergeFrom(resources_pb2.Job(owner="ada", share_weight=0.5))
    weighed = messages.job_from_proto(message).plannable
    assert (weighed.owner, weighed.share_weight) == ("ada", 0.5)


@pytest.mark.parametrize(("caution", "rates"), [(0.0, [10, 30]), (1.0, [9, 9])])
def test_a_profile_lowered_by_caution_still_never_falls(caution: float, rates: list[float]) -> None:
    points = [
        profiler_pb2.ProfilePoint(nodes=1, rate=10, relative_error=0.1),
        profiler_pb2.ProfilePoint(nodes=4, rate=30, relative_error=0.9),
    ]
    stalls = [resources_pb2.RescaleStall(from_nodes=1, to_nodes=4, seconds=5)]
    pin = profiler_pb2.Hold(nodes=2, grow=True, until_unix_seconds=50.0)
    noise = resources_pb2.GradientNoise(noise_scale=900.0, batch_per_node=32.0)
    message = profiler_pb2.Profile(job_id="j1", points=points, scale_up_seconds=2, stalls=stalls, hold=pin, noise=noise)
    found = messages.profile_from_proto(message, caution)
    assert found.curve is not None
    assert found.curve.points == tuple(ScalingPoint(nodes, rate) for nodes, rate in zip((1, 4), rates, strict=True))
    assert found.curve.scale_up_seconds == 2
    assert found.curve.stalls == (RescaleStall(1, 4, 5),)
    assert found.curve.noise == GradientNoise(900.0, 32.0)
    assert found.pin == ScalePin(2, True, 50.0)


def test_a_profile_without_points_is_no_curve() -> None:
    found = messages.profile_from_proto(profiler_pb2.Profile(job_id="j1"), 0.0)
    assert (found.curve, found.pin) == (None, None)


def test_what_is_remembered_of_a_message_is_that_of_the_same_job_only() -> None:
    job = JobDemand("a", 1, 4, (ScalingPoint(1, 10.0),), current_nodes=("n1",))
    problem = AllocationProblem(("n1", "n2"), 60.0, (job,), expected_stay_seconds={"n1": 5.0})
    moved = replace(problem, jobs=(replace(job, current_nodes=("n2",), boot_seconds=3.0),), max_nodes=1)
    for each in (problem, moved, problem):
        assert messages.problem_from_proto(messages.problem_to_proto(each)) == each
    for nodes in (("n1",), ("n1", "n2"), (), ("n1",)):
        assert messages.assignment_to_proto(Assignment("a", nodes)).nodes == list(nodes)
