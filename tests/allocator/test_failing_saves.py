"""Jobs whose saves fail are pinned at what they have."""

from __future__ import annotations

from math import inf

import pytest

from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.allocator.wire.messages import job_from_proto
from malletrain.v1 import resources_pb2


@pytest.mark.parametrize(
    ("nodes", "fail", "pin"),
    [(("a", "b"), True, ScalePin(2, grow=False, until=inf)), (("a", "b"), False, None), ((), True, None)],
)
def test_a_job_is_pinned_while_its_saves_fail_and_it_has_nodes(
    nodes: tuple[str, ...], fail: bool, pin: ScalePin | None
) -> None:
    job = resources_pb2.Job(
        id="j000001",
        state=resources_pb2.JOB_STATE_RUNNING if nodes else resources_pb2.JOB_STATE_WAITING,
        admitted=True,
        commanded_nodes=nodes,
        saves_fail=fail,
        spec=resources_pb2.JobSpec(min_nodes=1, max_nodes=4),
    )
    cache = ClusterCache()
    cache.update_jobs([job_from_proto(job)], snapshot=True)
    assert cache.plan_input(1000.0).pins.get("j000001") == pin
