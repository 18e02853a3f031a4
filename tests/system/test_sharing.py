"""Two owners on real services: limits hold, what each has used is known, and the next plan weighs their jobs by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import allocator_pb2, job_manager_pb2, resources_pb2, scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]
SECONDS = 120.0

SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4"]
debounce_seconds = 0
[job_manager]
max_parallel_per_owner = 2
[allocator]
max_nodes_per_owner = 3
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("sharing"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 4, 30, "all nodes")
        yield deployment


def submit(system: Deployment, user: str, count: int) -> list[str]:
    done = system.command("token", "--user", user, "--role", "user", "--lifespan", "10m")
    assert done.returncode == 0, done.stderr
    stubs = ServiceStubs(load(system.config), FixedToken(done.stdout.strip()))
    spec = resources_pb2.JobSpec(
        name=f"of {user}",
        command=["sleep", "1000"],
        working_directory="/",
        min_nodes=1,
        max_nodes=4,
        curve=[resources_pb2.ScalingPoint(nodes=1, rate=10.0), resources_pb2.ScalingPoint(nodes=4, rate=40.0)],
        scale_up_seconds=1.0,
        scale_down_seconds=1.0,
        profile=resources_pb2.PROFILE_MODE_NEVER,
        backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
    )
    try:
        request = job_manager_pb2.SubmitJobsRequest(specs=[spec] * count)
        return [job.id for job in stubs.job_manager.SubmitJobs(request, timeout=10).jobs]
    finally:
        stubs.close()


def nodes_of(stubs: ServiceStubs) -> dict[str, int]:
    """Nodes by owner, once all that is wanted is confirmed; else nothing."""
    found: dict[str, int] = {}
    for job in stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10).jobs:
        if set(job.confirmed_nodes) != set(job.wanted_nodes):
            return {}
        found[job.owner] = found.get(job.owner, 0) + len(job.confirmed_nodes)
    return found


def owners(system: Deployment) -> dict[str, Any]:
    return {entry["owner"]: entry for entry in system.json("jobs", "--owners")["owners"]}


def test_two_owners_share_what_is_idle(system: Deployment) -> None:
    stubs = system.stubs
    first, _, third = submit(system, "ada", 3)
    wait_until(lambda: nodes_of(stubs) == {"ada": 3}, SECONDS, "as many nodes for ada as an owner may have")
    held_back = system.json("job", third)
    assert (held_back["reasonCode"], held_back["admitted"]) == ("OWNER_LIMIT", False)
    (job,) = submit(system, "bob", 1)
    wait_until(lambda: nodes_of(stubs).get("bob"), SECONDS, "nodes for bob")
    found = owners(system)
    assert found["ada"]["usedNodeSeconds"] > found["bob"]["usedNodeSeconds"] > 0.0
    assert (found["ada"]["jobs"], found["ada"]["admittedJobs"]) == (3, 2)

    stubs.scavenger.ReclaimNodes(scavenger_pb2.ReclaimNodesRequest(nodes=["n4"]), timeout=30)

    def weighs_by_use() -> bool:
        plan = stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=10).plan
        weights = {demand.id: demand.weight for demand in plan.problem.jobs if demand.share_weight}
        return weights.get(job, 1.0) > 1.0 > weights.get(first, 1.0)

    wait_until(weighs_by_use, SECONDS, "a plan that weighs by use")
    stubs.close()
    plan = system.json("plan")
    assert plan["problem"]["ownerLimits"] == {"ada": 3, "bob": 3}
    shown = system.command("plan").stdout
    assert "ada may have 3 nodes" in shown
    detail = system.command("job", job).stdout
    assert "for fair share (bob has" in detail
    assert "half of a use is left after 7 days" in system.command("jobs", "--owners").stderr


def test_owners_are_listed_alone(system: Deployment) -> None:
    done = system.command("jobs", "--owners", "--mine")
    assert done.returncode == 2
    assert "--owners" in done.stderr
