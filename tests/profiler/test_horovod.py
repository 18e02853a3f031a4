"""The curve of a real training as Profiler finds it, compared with an exhaustively measured one."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from malletrain.v1 import job_manager_pb2, profiler_pb2, resources_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [
    pytest.mark.training,
    pytest.mark.horovod,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment"),
]
NODES = 8
TRAINER = Path(__file__).with_name("trainer.py")
# Steps are long compared with disturbances by other processes. Horovod's background threads wake up every 10 ms instead
# of every 1 ms, since eight workers share the cores of this machine.
VARIABLES = {"TEST_STEP": "0.15,0.1,0.02", "HOROVOD_CYCLE_TIME": "10"}
EXHAUSTIVE_SECONDS = 20.0


@contextmanager
def system(folder: Path, profiler: str) -> Iterator[Deployment]:
    nodes = ", ".join(f'"n{index}"' for index in range(1, NODES + 1))
    settings = f"""
[scavenger]
source = "static"
nodes = [{nodes}]
debounce_seconds = 0
[monitor]
publish_seconds = 0.25
warmup_seconds = 0.2
[profiler]
{profiler}
"""
    with deployed(folder, settings) as deployment:
        yield deployment


def profiled(deployment: Deployment) -> profiler_pb2.Profile:
    """Start a training, wait until it trains on all nodes, and profile it."""
    spec = resources_pb2.JobSpec(
        name="real",
        command=[sys.executable, str(TRAINER)],
        working_directory="/",
        environment={"OMP_NUM_THREADS": "1", **VARIABLES},
        min_nodes=1,
        max_nodes=NODES,
    )
    stub = deployment.stubs.job_manager
    job_id = stub.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec]), timeout=10).jobs[0].id

    def on_all() -> bool:
        job = stub.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=10).job
        return job.state == resources_pb2.JOB_STATE_RUNNING and len(job.confirmed_nodes) == NODES

    wait_until(on_all, 240, "a training on all nodes")
    request = profiler_pb2.GetProfileRequest(job_id=job_id)
    peer = deployment.stubs.profiler
    peer.StartProfile(profiler_pb2.StartProfileRequest(job_id=job_id), timeout=30)

    def done() -> bool:
        return peer.GetProfile(request, timeout=10).profile.run.state == profiler_pb2.PROFILE_STATE_DONE

    wait_until(done, 400, "the end of the profile")
    found = peer.GetProfile(request, timeout=10).profile
    stub.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job_id), timeout=30)
    return found


def rates(found: profiler_pb2.Profile) -> list[float]:
    nodes, values = [0, *(p.nodes for p in found.points)], [0.0, *(p.rate for p in found.points)]
    return list(map(float, np.interp(range(1, NODES + 1), nodes, values)))


def test_as_good_as_an_exhaustive_profile_and_cheaper(tmp_path: Path) -> None:
    with system(tmp_path / "quick", "") as deployment:
        quick = profiled(deployment)
    every = f'strategy = "every"\ntarget_error = 0.0001\nvisit_seconds = {EXHAUSTIVE_SECONDS}'
    with system(tmp_path / "every", every) as deployment:
        exhaustive = profiled(deployment)
    assert sorted(exhaustive.run.visited_nodes) == list(range(1, NODES + 1))
    errors = [abs(a / b - 1.0) for a, b in zip(rates(quick), rates(exhaustive), strict=True)]
    print(
        f"mean error {100 * statistics.fmean(errors):.2f} %, worst {100 * max(errors):.2f} %; "
        f"visited {list(quick.run.visited_nodes)}, growths {quick.run.growths}; "
        f"{quick.run.node_seconds:.0f} of {exhaustive.run.node_seconds:.0f} node-seconds; fit {quick.fit}; "
        f"rates {[round(rate) for rate in rates(quick)]} and {[round(rate) for rate in rates(exhaustive)]}"
    )
    assert statistics.fmean(errors) <= 0.05
    assert quick.run.growths <= 1
    # It is a tenth on an idle machine. Where step times vary, more steps are needed at each scale.
    assert quick.run.node_seconds < 0.5 * exhaustive.run.node_seconds
