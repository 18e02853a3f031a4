"""A node that jobs of two owners call slow: it counts, the webhook is told, and the next plan leaves it out."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.waiting import wait_until
from tests.support.webhooks import Receiver, received, webhook_file
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "scripts" / "uneven.py"
SETTINGS = """
[access]
munge = "off"
[allocator]
avoid_slow_nodes = true
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
[scavenger.notifications]
webhook_file = "{webhook}"
"""


def stubs_of(system: Deployment, user: str) -> ServiceStubs:
    done = system.command("token", "--user", user, "--role", "user", "--lifespan", "10m")
    assert done.returncode == 0, done.stderr
    return ServiceStubs(load(system.config), FixedToken(done.stdout.strip()))


def find_it_slow(system: Deployment, user: str) -> None:
    """A job of a user trains on all nodes, of which n2 is slow, until Monitor says so."""
    spec = resources_pb2.JobSpec(
        name=f"of {user}",
        command=[sys.executable, str(SCRIPT), "n2"],
        working_directory="/",
        environment={"PATH": os.environ["PATH"]},
        min_nodes=3,
        max_nodes=3,
        curve=[resources_pb2.ScalingPoint(nodes=3, rate=100.0)],
        profile=resources_pb2.PROFILE_MODE_NEVER,
        backend=resources_pb2.LAUNCHER_BACKEND_TORCHRUN,
    )
    with closing(stubs_of(system, user)) as stubs:
        request = job_manager_pb2.SubmitJobsRequest(specs=[spec])
        (job,) = stubs.job_manager.SubmitJobs(request, timeout=30).jobs

        def named() -> list[str]:
            progress = system.json("job", job.id)["progress"] or {}
            return [worker["node"] for worker in progress.get("slowWorkers", ())]

        wait_until(named, 240, f"a slow worker of {user}'s job")
        assert named() == ["n2"]
        stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job.id), timeout=30)
        wait_until(lambda: not system.job(job.id).confirmed_nodes, 60, "its end")


def told(receiver: Receiver) -> list[tuple[str, str]]:
    return [(row["name"], row["event"]) for _, body in receiver.requests for row in body["nodes"]]


def test_a_node_that_two_owners_call_slow_is_left_out_and_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with received() as receiver:
        settings = SETTINGS.format(webhook=webhook_file(tmp_path, receiver.url))
        with deployed(tmp_path / "up", settings) as system:
            wait_until(lambda: len(system.json("nodes")) == 3, 60, "three idle nodes")
            find_it_slow(system, "ada")
            wait_until(lambda: told(receiver) == [("n2", "called-slow")], 60, "a notice of one owner's word")
            find_it_slow(system, "bob")
            wait_until(lambda: told(receiver)[1:] == [("n2", "slow")], 60, "a notice that the node counts as slow")
            scale = ("--min", "1", "--max", "3", "--curve", "1:100,2:190,3:270")
            done = system.command("submit", "--backend", "command", *scale, "--", "sleep", "600")
            assert done.returncode == 0, done.stderr
            job = done.stdout.strip()
            wait_until(lambda: set(system.job(job).commanded_nodes) == {"n1", "n3"}, 60, "the other nodes")
            assert "not slow" in system.command("explain", job).stdout
            assert told(receiver) == [("n2", "called-slow"), ("n2", "slow")]
