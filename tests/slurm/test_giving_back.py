"""Nodes of a real Slurm that operators want back, a graceful end, and a job of somebody else with our job name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.v1 import scavenger_pb2
from tests.slurm.cluster import Cluster, cluster, missing
from tests.slurm.holding import NODES, PLACEHOLDER, holding
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

PATIENCE = 90.0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path / "slurm", NODES) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


async def test_drained_and_reclaimed_nodes_are_given_back_and_all_at_the_end_but_no_job_of_others(
    slurm: Cluster, tmp_path: Path
) -> None:
    theirs, drained, reclaimed = slurm.nodes
    script = f"--partition=scavenge --job-name={PLACEHOLDER} --exclusive --nodelist={theirs} --output=/dev/null"
    foreign = slurm.run("sbatch", "--parsable", *script.split(), "--wrap=exec sleep 600").strip()
    wait_until(lambda: slurm.jobs() == [(foreign, "RUNNING", (theirs,))], PATIENCE, "a job of somebody else")

    def held() -> set[str]:
        return {node for job, _, nodes in slurm.jobs(PLACEHOLDER) for node in nodes if job != foreign}

    async with holding(tmp_path) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == {drained, reclaimed}, PATIENCE, "two nodes")
        slurm.run("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
        await wait_until_async(lambda: set(watch.idle) == {reclaimed}, PATIENCE, "the drained node to be left")
        await wait_until_async(lambda: held() == {reclaimed}, PATIENCE, "the end of its placeholder")
        request = scavenger_pb2.ReclaimNodesRequest(nodes=[reclaimed], hold_seconds=300)
        await scavenger.stub.ReclaimNodes(request, timeout=10)
        await wait_until_async(lambda: not held(), PATIENCE, "the end of the other placeholder")
        slurm.run("scontrol", "update", f"NodeName={drained}", "State=RESUME")
        await wait_until_async(lambda: set(watch.idle) == {drained}, PATIENCE, "the node to be taken again")
        await scavenger.stub.DrainNodes(scavenger_pb2.DrainNodesRequest(all=True), timeout=10)
        await wait_until_async(lambda: not held(), PATIENCE, "the end of all placeholders")
        await scavenger.stub.ResumeNodes(scavenger_pb2.ResumeNodesRequest(all=True), timeout=10)
        await wait_until_async(lambda: set(watch.idle) == {drained}, PATIENCE, "the node to be taken once more")
    wait_until(lambda: slurm.jobs() == [(foreign, "RUNNING", (theirs,))], 20, "the end of all placeholders")
