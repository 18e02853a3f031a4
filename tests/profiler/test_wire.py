"""Protocol buffers as values of the pure core."""

from __future__ import annotations

import pytest

from malletrain.model.goodput import GradientNoise
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements
from malletrain.profiler.machine.job_views import view_of
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.wire import declaration_of, job_from_proto, measurements_of, profile_message
from malletrain.v1 import monitor_pb2, resources_pb2

POOLS = {"g1": "gpu", "g2": "gpu", "c1": "cpu"}


@pytest.mark.parametrize(
    ("commanded", "pools", "expected"),
    [
        (["g1", "g2"], POOLS, "gpu"),
        (["c1", "g1", "g2"], POOLS, "gpu"),
        (["gone"], POOLS, None),
        ([], POOLS, None),
        ([], {"c1": "cpu", "c2": "cpu"}, "cpu"),
        ([], {}, None),
    ],
)
def test_a_job_is_in_the_pool_of_most_of_its_nodes(
    commanded: list[str], pools: dict[str, str], expected: str | None
) -> None:
    job = resources_pb2.Job(id="j000001", state=resources_pb2.JOB_STATE_RUNNING, commanded_nodes=commanded)
    job.spec.min_nodes, job.spec.max_nodes = 1, 8
    assert view_of(job_from_proto(job), 0.0, pools).pool == expected


def test_a_job_that_needs_certain_nodes_is_not_measured_on_purpose() -> None:
    job = resources_pb2.Job(id="j1", spec=resources_pb2.JobSpec(profile=resources_pb2.PROFILE_MODE_ALWAYS))
    declared = declaration_of(job)
    assert (declared.mode, declared.needs_certain_nodes) == (ProfilingMode.ALWAYS, False)
    job.spec.needs.gpu = "a100"
    declared = declaration_of(job)
    assert (declared.mode, declared.needs_certain_nodes) == (ProfilingMode.NEVER, True)


def test_a_job_whose_saves_fail_is_neither_measured_nor_a_donor() -> None:
    job = resources_pb2.Job(
        id="j1",
        state=resources_pb2.JOB_STATE_RUNNING,
        spec=resources_pb2.JobSpec(min_nodes=1, max_nodes=4),
        wanted_nodes=["a"],
        commanded_nodes=["a"],
        confirmed_nodes=["a"],
    )
    view = view_of(job_from_proto(job), 0.0, {})
    assert (view.available, view.steady) == (True, True)
    job.saves_fail = True
    view = view_of(job_from_proto(job), 0.0, {})
    assert (view.available, view.steady) == (False, False)


def test_what_a_training_tells_of_its_gradients_goes_from_monitor_to_the_allocator() -> None:
    noise = resources_pb2.GradientNoise(noise_scale=900.0, batch_per_node=32.0)
    record = monitor_pb2.ScalingRecord(job_id="j1", points=[monitor_pb2.MeasuredPoint(nodes=1, rate=10.0)], noise=noise)
    measured = measurements_of(record, JobMeasurements())
    assert measured.noise == GradientNoise(900.0, 32.0)
    curves = CurveEstimator.of(ProfilerSettings().options())
    curves.put_job(JobDeclaration(job_id="j1", min_nodes=1, max_nodes=4))
    curves.put_measurements("j1", measured)
    (profile,) = curves.refresh()
    message = profile_message(profile, ProfilingState())
    assert message.noise == noise
    record.ClearField("noise")
    assert measurements_of(record, measured).noise is None
