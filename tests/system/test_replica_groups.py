"""A job of which each replica must be in one rack, live: it grows, loses nodes and waits by whole replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(600)]

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]
debounce_seconds = 0

[scavenger.topology]
"n1,n4,n7" = ["row1", "rack1"]
"n2,n5" = ["row1", "rack2"]
"n3,n6" = ["row2", "rack3"]
"""
RACK_OF = {"n1": 1, "n4": 1, "n7": 1, "n2": 2, "n5": 2, "n3": 3, "n6": 3}
CURVE = "1:100,2:200,4:390,6:570,8:700"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), SETTINGS, seconds=180) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 7, 60, "seven idle nodes")
        yield deployment


def submit(system: Deployment, *options: str) -> str:
    done = system.command("submit", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def confirmed(system: Deployment, job: str) -> list[str]:
    """Nodes that it trains on, once these are the commanded ones."""
    told = system.job(job)
    return list(told.commanded_nodes) if set(told.confirmed_nodes) == set(told.commanded_nodes) else []


def racks(nodes: list[str]) -> list[tuple[int, int]]:
    """The racks of both nodes of each replica."""
    return [(RACK_OF[one], RACK_OF[other]) for one, other in zip(nodes[::2], nodes[1::2], strict=True)]


def started(folder: Path) -> list[list[str]]:
    """The hosts of each start of the program, in rank order, as the program itself was told."""
    return [[entry.split(":")[0] for entry in line.split(",")] for line in folder.read_text().split()]


def test_replicas_stay_whole_and_in_one_rack_each(system: Deployment, tmp_path: Path) -> None:
    refused = system.command("submit", "--topology", "require-replica", "--", "sleep", "600")
    assert refused.returncode != 0
    assert "--nodes-per-replica: expected at least 2, as topology require-replica says" in refused.stderr
    pairs = ("--backend", "command", "--nodes-per-replica", "2", "--topology", "require-replica", "--curve", CURVE)
    told = tmp_path / "told"
    program = f'echo "$MALLETRAIN_HOSTS" >> {told}; exec sleep 600'
    job = submit(system, *pairs, "--max", "8", "--leave-grace", "1", "--", "sh", "-c", program)
    wait_until(lambda: len(confirmed(system, job)) == 6, 90, "three replicas; of eight nodes there would be four")
    assert sorted(racks(confirmed(system, job))) == [(1, 1), (2, 2), (3, 3)]
    shown = " ".join(system.command("job", job).stdout.split())
    assert "in replicas of 2; 3 of them now" in shown
    assert "the 2 nodes of each replica in one innermost group" in shown
    explained = " ".join(system.command("explain", job).stdout.split())
    assert "the 2 nodes of each replica must be in one innermost group: that costs the plan nothing" in explained
    assert "not 8: the pool has 7 nodes" in explained

    # The third node of the rack completes the replica again.
    lost = next(name for name in confirmed(system, job) if RACK_OF[name] == 1)
    assert system.command("drain", lost).returncode == 0
    wait_until(lambda: len(now := confirmed(system, job)) == 6 and lost not in now, 90, "a completed replica")
    assert sorted(racks(confirmed(system, job))) == [(1, 1), (2, 2), (3, 3)]
    # Now the rack has one node left: the replica is given up, and the node is another job's.
    second = next(name for name in confirmed(system, job) if RACK_OF[name] == 1)
    (left,) = {name for name, rack in RACK_OF.items() if rack == 1} - {lost, second}
    assert system.command("drain", second).returncode == 0
    wait_until(lambda: len(now := confirmed(system, job)) == 4 and left not in now, 90, "two replicas")
    assert sorted(racks(confirmed(system, job))) == [(2, 2), (3, 3)]
    single = submit(system, "--backend", "command", "--max", "1", "--curve", "1:100", "--", "sleep", "600")
    wait_until(lambda: confirmed(system, single) == [left], 60, "the node that makes no replica is used")
    # No start of the program had a part of a replica, or one of two racks.
    for hosts in started(told):
        assert all(one == other for one, other in racks(hosts)), hosts

    large = system.command("submit", *pairs, "--min", "8", "--max", "8", "--", "sleep", "600")
    assert large.returncode == 0, large.stderr
    why = "it needs 8 nodes at least, the 2 of each replica in one innermost group; of the 7 known nodes, idle or"
    told_of_large = " ".join(large.stderr.split())
    assert why in told_of_large
    assert "6 that suit it make whole replicas, the largest such group has 3" in told_of_large
    for name in (job, single, large.stdout.strip()):
        assert system.command("cancel", name).returncode == 0
