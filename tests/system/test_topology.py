"""Jobs that prefer nodes near each other, on a live system: they get these, and everybody is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long]

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4", "n5", "n6"]
debounce_seconds = 0

[scavenger.topology]
"n1,n4" = ["row1", "rack1"]
"n2,n5" = ["row1", "rack2"]
"n3,n6" = ["row2", "rack3"]
"""
RACKS = ({"n1", "n4"}, {"n2", "n5"}, {"n3", "n6"})


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 6, 60, "six idle nodes")
        yield deployment


def submit(system: Deployment, *options: str) -> str:
    job = ("--backend", "command", "--min", "2", "--max", "2", "--curve", "1:100,2:190", "--", "sleep", "600")
    done = system.command("submit", *options, *job)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_jobs_get_a_rack_each_and_are_told_so(system: Deployment) -> None:
    refused = system.command("submit", "--topology", "prefer=2", "--", "sleep", "600")
    assert refused.returncode == 2
    assert "--topology: expected none, prefer, require, require-replica, require=LEVEL or" in refused.stderr
    jobs = [submit(system, "--topology", "prefer") for _ in range(3)]
    wait_until(lambda: all(len(system.job(job).commanded_nodes) == 2 for job in jobs), 60, "two nodes for each job")
    assert sorted(sorted(system.job(job).commanded_nodes) for job in jobs) == [sorted(rack) for rack in RACKS]
    assert {node["name"]: node["topology"] for node in system.json("nodes")}["n6"] == ["row2", "rack3"]
    assert "row2/rack3" in system.command("nodes").stdout
    groups = "groups that its nodes are in: 1 of level 1, 1 of level 2"
    assert groups in " ".join(system.command("job", jobs[0]).stdout.split())
    assert groups in " ".join(system.command("explain", jobs[0]).stdout.split())
    for job in jobs:
        assert system.command("cancel", job).returncode == 0
    wait_until(lambda: not any(node["jobId"] for node in system.json("nodes")), 60, "six free nodes")


def test_a_job_that_requires_a_group_waits_for_one(system: Deployment) -> None:
    options = ("--backend", "command", "--curve", "1:100,2:190,3:270,4:340,5:400", "--", "sleep", "600")
    row = system.command("submit", "--topology", "require=1", "--min", "1", "--max", "5", *options)
    assert row.returncode == 0, row.stderr
    first = row.stdout.strip()
    row1 = sorted(RACKS[0] | RACKS[1])
    wait_until(lambda: sorted(system.job(first).commanded_nodes) == row1, 60, "the whole first row")
    rack = system.command("submit", "--topology", "require", "--min", "2", "--max", "3", *options)
    second = rack.stdout.strip()
    wait_until(lambda: set(system.job(second).commanded_nodes) == RACKS[2], 60, "the rack that is free")
    large = system.command("submit", "--topology", "require=2", "--min", "3", "--max", "3", *options)
    assert large.returncode == 0, large.stderr
    why = "it needs 3 nodes at least in one group of level 2; of the 6 known nodes, idle or not, 3 such groups have"
    assert why in " ".join(large.stderr.split())
    third = large.stdout.strip()
    shown = " ".join(system.command("job", second).stdout.split())
    assert "all nodes in one innermost group; groups that its nodes are in: 1 of level 1, 1 of level 2" in shown
    wait_until(lambda: third in system.command("explain").stdout, 60, "a plan with the third job")
    told = " ".join(system.command("explain", third).stdout.split())
    assert "all its nodes must be in one group of level 2" in told
    assert "no group of level 2 has as many nodes as it needs at least" in told
    assert not system.job(third).commanded_nodes
