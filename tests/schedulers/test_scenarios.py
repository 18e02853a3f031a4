"""What holds with every batch scheduler, on real servers: Slurm (`-m slurm`) and OpenPBS (`-m pbs`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.v1 import scavenger_pb2
from tests.pbs.cluster import missing as missing_pbs
from tests.pbs.cluster import pbs_cluster
from tests.schedulers.batch_cluster import BatchCluster, noting
from tests.schedulers.holding import holding, query_error
from tests.schedulers.installation import installed
from tests.slurm.batch import SlurmCluster
from tests.slurm.cluster import cluster as slurm_cluster
from tests.slurm.cluster import missing as missing_slurm
from tests.support.waiting import wait_until, wait_until_async
from tests.training.trainer_settings import SIZE

pytestmark = [pytest.mark.timeout(300)]

NODES = 3
RACK = 2
"""The first two nodes are near each other."""
PATIENCE = 90.0
TRAINING_PATIENCE = 180.0
KINDS = [pytest.param("slurm", marks=pytest.mark.slurm), pytest.param("pbs", marks=pytest.mark.pbs)]


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchCluster]:
    if reason := missing_slurm() if request.param == "slurm" else missing_pbs():
        pytest.skip(reason)
    if request.param == "slurm":
        with slurm_cluster(tmp_path_factory.mktemp("slurm"), NODES, rack=RACK) as slurm:
            yield SlurmCluster(slurm)
    else:
        with pbs_cluster(NODES, rack=RACK) as pbs:
            yield pbs


@pytest.fixture
def cluster(running: BatchCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchCluster]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    yield running
    running.end_jobs()


async def test_nodes_that_operators_want_are_given_back_and_all_at_the_end(
    cluster: BatchCluster, tmp_path: Path
) -> None:
    offline, reclaimed, other = cluster.nodes
    async with holding(cluster, tmp_path) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "all nodes")
        assert sorted(cluster.placeholders().values()) == sorted(cluster.nodes), "one placeholder for each node"
        cluster.set_offline(offline)
        await wait_until_async(lambda: set(watch.idle) == {reclaimed, other}, PATIENCE, "the node to be left")
        await wait_until_async(
            lambda: offline not in cluster.placeholders().values(), PATIENCE, "its placeholder's end"
        )
        request = scavenger_pb2.ReclaimNodesRequest(nodes=[reclaimed], hold_seconds=300)
        await scavenger.stub.ReclaimNodes(request, timeout=10)
        await wait_until_async(lambda: set(cluster.placeholders().values()) == {other}, PATIENCE, "the other one's end")
        cluster.set_online(offline)
        await wait_until_async(lambda: set(watch.idle) == {offline, other}, PATIENCE, "the node to be taken again")
        await scavenger.stub.DrainNodes(scavenger_pb2.DrainNodesRequest(all=True), timeout=10)
        await wait_until_async(lambda: not cluster.placeholders(), PATIENCE, "the end of all placeholders")
        await scavenger.stub.ResumeNodes(scavenger_pb2.ResumeNodesRequest(all=True), timeout=10)
        await wait_until_async(lambda: set(watch.idle) == {offline, other}, PATIENCE, "the nodes to be taken once more")
    wait_until(lambda: not cluster.placeholders(), 30, "the end of all placeholders")


async def test_no_job_of_others_is_touched_whatever_it_is_called(cluster: BatchCluster, tmp_path: Path) -> None:
    named, marked, ours = cluster.nodes
    same_name = cluster.submit_lookalike(named, "scavenge")
    wait_until(lambda: cluster.is_running(same_name), PATIENCE, "a job with our name in our queue")
    async with holding(cluster, tmp_path) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == {marked, ours}, PATIENCE, "two nodes")
        own = next(job for job, node in cluster.placeholders().items() if node == ours)
        same_mark = cluster.submit_lookalike(marked, "main", cluster.mark_of(own))
        await wait_until_async(lambda: cluster.is_running(same_mark), PATIENCE, "a main job with our name and mark")
        await wait_until_async(lambda: set(watch.idle) == {ours}, PATIENCE, "its node to be left")
        await scavenger.stub.DrainNodes(scavenger_pb2.DrainNodesRequest(all=True), timeout=10)
        await wait_until_async(
            lambda: set(cluster.placeholders()) == {same_name}, PATIENCE, "the end of all placeholders"
        )
        assert cluster.is_running(same_mark)
        await scavenger.stub.ResumeNodes(scavenger_pb2.ResumeNodesRequest(all=True), timeout=10)
        await wait_until_async(lambda: set(watch.idle) == {ours}, PATIENCE, "the node to be taken again")
    wait_until(lambda: set(cluster.placeholders()) == {same_name}, 30, "the end of all placeholders")
    assert cluster.is_running(same_name)
    assert cluster.is_running(same_mark)


async def test_a_main_job_gets_held_nodes_and_they_are_taken_again_after_it(
    cluster: BatchCluster, tmp_path: Path
) -> None:
    behind, idle = tmp_path / "behind", tmp_path / "idle"
    async with holding(cluster, tmp_path / "state") as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "all nodes")
        held = set(cluster.placeholders())
        submitted = time.time()
        main = cluster.submit_main(NODES, noting(behind, 4))
        await wait_until_async(behind.exists, PATIENCE, "the main job")
        assert not held & set(cluster.placeholders()), "no placeholder is beside it"
        waited = float(behind.read_text()) - submitted
        assert waited < cluster.start_seconds
        await wait_until_async(lambda: not watch.idle, PATIENCE, "the nodes to be left")
        await wait_until_async(lambda: not cluster.is_running(main), PATIENCE, "the end of the main job")
        await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "all nodes once more")
    await wait_until_async(lambda: not cluster.placeholders(), PATIENCE, "the end of all placeholders")
    submitted = time.time()
    cluster.submit_main(NODES, noting(idle, 0))
    await wait_until_async(idle.exists, PATIENCE, "a main job without us")
    print(
        f"{cluster.name}: a main job on {NODES} nodes started after {waited:.2f} s behind placeholders, "
        f"{float(idle.read_text()) - submitted:.2f} s on idle nodes"
    )


async def test_a_killed_server_costs_nobody_anything(cluster: BatchCluster, tmp_path: Path) -> None:
    async with holding(cluster, tmp_path) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "all nodes")
        before, told = cluster.placeholders(), len(watch.messages)
        await asyncio.to_thread(cluster.kill_server)
        async with asyncio.timeout(PATIENCE):
            while not await query_error(scavenger, "nodes"):
                await asyncio.sleep(0.1)
        await asyncio.to_thread(cluster.start_again)
        async with asyncio.timeout(PATIENCE):
            while await query_error(scavenger, "nodes"):
                await asyncio.sleep(0.1)
        await wait_until_async(lambda: cluster.placeholders() == before, PATIENCE, "the same placeholders")
        assert set(watch.idle) == set(cluster.nodes)
        assert not any(message.left for message in watch.messages[told:]), "no node was left"


async def test_a_scavenger_finds_its_placeholders_again(cluster: BatchCluster, tmp_path: Path) -> None:
    address = {"agents_address": f"{cluster.head}:50166"}
    async with holding(cluster, tmp_path, give_back_at_exit=False, **address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "all nodes")
        before = cluster.placeholders()
    assert cluster.placeholders() == before
    async with holding(cluster, tmp_path, **address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "the same nodes")
        assert cluster.placeholders() == before
    wait_until(lambda: not cluster.placeholders(), 30, "the end of all placeholders")


async def test_a_reserved_node_is_not_held_and_taken_after_the_reservation(
    cluster: BatchCluster, tmp_path: Path
) -> None:
    reserved, *others = cluster.nodes
    name = cluster.reserve(reserved, 45, 60)
    try:
        async with holding(cluster, tmp_path) as scavenger:
            watch = scavenger.watch()
            await wait_until_async(lambda: set(watch.idle) == set(others), PATIENCE, "the other nodes")
            assert set(cluster.placeholders().values()) == set(others)
            cluster.end_reservation(name)
            await wait_until_async(lambda: set(watch.idle) == set(cluster.nodes), PATIENCE, "the node after all")
    finally:
        cluster.end_reservation(name)


@pytest.mark.timeout(900)
def test_a_training_goes_on_elsewhere_where_a_main_job_takes_its_node(cluster: BatchCluster, tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    with installed(cluster, tmp_path) as running:
        job = running.submit(1, NODES - 1)
        wait_until(lambda: len(running.nodes(job)) == NODES - 1, TRAINING_PATIENCE, "a training on all but one node")
        wait_until(lambda: running.samples(job) > 0, TRAINING_PATIENCE, "samples")
        before = running.nodes(job)
        assert set(cluster.placeholders().values()) >= before
        (spare,) = set(cluster.nodes) - before
        wanted = min(before)
        held = {name for name, node in cluster.placeholders().items() if node == wanted}
        main = cluster.submit_lookalike(wanted, "main")
        wait_until(lambda: cluster.is_running(main), TRAINING_PATIENCE, "the main job")
        assert not held & set(cluster.placeholders()), "no placeholder is beside it"
        expected = before - {wanted} | {spare}
        wait_until(lambda: running.nodes(job) == expected, TRAINING_PATIENCE, "the training on the node that was left")
        reached = running.samples(job)
        wait_until(lambda: running.samples(job) > reached + SIZE, TRAINING_PATIENCE, "an epoch more")
        assert cluster.is_running(main)
        running.end_after(job, running.samples(job) + SIZE)
        wait_until(lambda: running.deployment.state(job) == "COMPLETED", TRAINING_PATIENCE, "the end of the training")
        accounts = running.accounts(job)
        assert accounts.check_epochs() >= 1, "each sample of an epoch was seen once"
        accounts.check_state()
        wait_until(lambda: not cluster.placeholders(), TRAINING_PATIENCE, "the nodes to be given back")
        assert cluster.is_running(main)


@pytest.mark.timeout(900)
def test_a_job_that_requires_one_rack_has_all_nodes_there_or_waits(cluster: BatchCluster, tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    rack, (other,) = cluster.nodes[:RACK], cluster.nodes[RACK:]
    with installed(cluster, tmp_path, **cluster.topology) as running:
        anywhere = running.submit(1, 1, "--exclude", ",".join(rack))
        wait_until(lambda: running.nodes(anywhere) == {other}, TRAINING_PATIENCE, "a training outside of the rack")
        sizes = ["--min", str(NODES), "--max", str(NODES), "--topology", "require"]
        too_large = running.deployment.command("submit", *sizes, "--", "true", timeout=90)
        assert f"2 such groups have nodes that suit it, the largest has {RACK}" in too_large.stdout + too_large.stderr
        assert running.deployment.command("cancel", anywhere, timeout=90).returncode == 0
        job = running.submit(RACK, NODES, "--topology", "require")
        wait_until(lambda: running.nodes(job) == set(rack), TRAINING_PATIENCE, "a training on the nodes of one rack")
        wait_until(lambda: running.samples(job) > 0, TRAINING_PATIENCE, "samples")
        main = cluster.submit_lookalike(rack[0], "main")
        wait_until(lambda: cluster.is_running(main), TRAINING_PATIENCE, "the main job")
        # Two nodes are left, one of each rack: its least number, but not in one rack.
        wait_until(lambda: not running.nodes(job), TRAINING_PATIENCE, "the training to wait for its rack")
        alone = running.submit(RACK, NODES)
        wait_until(
            lambda: running.nodes(alone) == {rack[1], other}, TRAINING_PATIENCE, "one that does not care on these"
        )
        assert not running.nodes(job)
        assert running.deployment.command("cancel", alone, timeout=90).returncode == 0
        cluster.end_job(main)
        wait_until(lambda: running.nodes(job) == set(rack), TRAINING_PATIENCE, "the training on its rack again")
    wait_until(lambda: not cluster.placeholders(), TRAINING_PATIENCE, "the nodes to be given back")
