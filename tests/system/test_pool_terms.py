"""Objective and limits of single pools on a live system: plans keep to them, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = pytest.mark.system

SETTINGS = """
[scavenger]
source = "static"
nodes = ["a1", "a2", "a3", "b1", "b2"]
debounce_seconds = 0

[scavenger.node_traits."a[1-3]"]
pool = "slow"
[scavenger.node_traits."b[1-2]"]
pool = "fast"

[allocator.pools.slow]
max_nodes = 2
[allocator.pools.fast]
objective_metric = "scaling_efficiency"
forward_seconds = 300
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 5, 60, "five idle nodes")
        yield deployment


def submit(system: Deployment, pool: str) -> str:
    curve = "1:100,2:190,3:270"
    job = ("--backend", "command", "--pool", pool, "--min", "1", "--max", "3", "--curve", curve, "--", "sleep", "600")
    done = system.command("submit", *job)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_each_pool_has_its_own_terms(system: Deployment) -> None:
    slow, fast = submit(system, "slow"), submit(system, "fast")
    wait_until(lambda: len(system.job(slow).commanded_nodes) == 2, 60, "two nodes, as many as the pool may give")
    wait_until(lambda: set(system.job(fast).commanded_nodes) == {"b1", "b2"}, 60, "the whole other pool")
    shown = system.command("plan").stdout
    assert "slow: 3 nodes, looks 120 s ahead, by throughput, all jobs together may have 2" in shown
    assert "fast: 2 nodes, looks 300 s ahead, by scaling efficiency" in shown
    told = " ".join(system.command("explain", slow).stdout.split())
    assert "not 3: jobs may have 2 nodes of the pool together, and 3 is its next permitted scale" in told
    assert "seconds of one node in the 300 s" in " ".join(system.command("explain", fast).stdout.split())
