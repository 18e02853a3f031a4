"""Protocol buffers as values of the pure core."""

from __future__ import annotations

import pytest

from malletrain.profiler.machine.job_views import view_of
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.wire import declaration_of, job_from_proto
from malletrain.v1 import resources_pb2

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
