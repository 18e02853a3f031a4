"""Placeholders that slurmctld has forgotten: it was killed before it had stored them."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.schedulers.holding import holding
from tests.slurm.batch import SlurmCluster
from tests.slurm.cluster import cluster, missing
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

NODES = 2
PATIENCE = 120.0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path / "slurm", NODES) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield SlurmCluster(running)


def agents(folder: Path) -> Counter[str]:
    """By node: how many agents of placeholders of this cluster live there."""
    found: Counter[str] = Counter()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "malletrain.agent" not in words or "python" not in Path(words[0]).name:
            continue
        try:
            if process.environ().get("SLURM_CONF") == str(folder / "slurm.conf"):
                found[words[words.index("--node") + 1]] += 1
        except psutil.Error:
            continue
    return found


async def test_nodes_are_held_again_by_one_placeholder_each_and_no_agent_is_left_without_a_job(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    folder = slurm.slurm.folder
    await asyncio.to_thread(slurm.slurm.await_stored)
    shutil.copy(folder / "state" / "job_state", folder / "before")
    async with holding(slurm, tmp_path / "state") as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == set(slurm.nodes), PATIENCE, "all nodes")
        forgotten = set(slurm.placeholders())
        await asyncio.to_thread(slurm.slurm.kill_controller)
        for name in ("job_state", "job_state.old"):
            shutil.copy(folder / "before", folder / "state" / name)
        await asyncio.to_thread(slurm.start_again)
        await wait_until_async(
            lambda: (
                sorted(slurm.placeholders().values()) == sorted(slurm.nodes) and set(watch.idle) == set(slurm.nodes)
            ),
            PATIENCE,
            "all nodes once more",
        )
        # Slurm counts its jobs anew, and may give the same numbers again.
        print(f"forgotten: {sorted(forgotten)}, now: {sorted(slurm.placeholders())}")
        await wait_until_async(
            lambda: agents(folder) == Counter(slurm.nodes), PATIENCE, "one agent on each node, and none without a job"
        )
    wait_until(lambda: not slurm.placeholders() and not agents(folder), 30, "the end of all placeholders")
