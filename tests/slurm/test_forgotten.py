"""Placeholders that slurmctld has forgotten, or that it takes for pending: it was killed before it had stored them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.scavenger.running import Running
from tests.schedulers.holding import holding
from tests.slurm.batch import SlurmCluster
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

NODES = 2
PATIENCE = 120.0
LEFT = "agent without a placeholder must leave"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm"), NODES) as found:
        yield found


@pytest.fixture
def slurm(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    found = SlurmCluster(running)
    yield found
    found.end_jobs()


async def test_nodes_are_held_again_by_one_placeholder_each_where_slurm_ends_agents_without_a_job(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    await asyncio.to_thread(keep_state, slurm)
    async with holding_all(slurm, tmp_path) as scavenger:
        forgotten = set(slurm.placeholders())
        await asyncio.to_thread(forget, slurm)
        await held_anew(slurm, scavenger)
        # Slurm counts its jobs anew, and may give the same numbers again.
        print(f"forgotten: {sorted(forgotten)}, now: {sorted(slurm.placeholders())}")
    wait_until(lambda: not slurm.placeholders() and not agents(slurm), 60, "the end of all placeholders")


async def test_agents_without_a_job_leave_their_nodes_where_slurm_does_not_end_them(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(keep_state, slurm)
    async with holding_all(slurm, tmp_path) as scavenger:
        watch = scavenger.watch()
        with no_slurmd(slurm):  # nobody on the nodes hears of slurmctld
            await asyncio.to_thread(forget, slurm)
            await wait_until_async(lambda: not agents(slurm), PATIENCE, "the agents to leave")
            await wait_until_async(lambda: not watch.idle, PATIENCE, "their nodes to be told as left")
            assert capsys.readouterr().out.count(LEFT) == NODES
        await held_anew(slurm, scavenger)
    wait_until(lambda: not slurm.placeholders() and not agents(slurm), 60, "the end of all placeholders")


async def test_agents_of_placeholders_that_slurm_takes_for_pending_leave_their_nodes(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.slurm.run("scontrol", "update", "PartitionName=scavenge", "State=DOWN")

    def let_start() -> None:
        wait_until(lambda: len(slurm.slurm.jobs("malletrain")) == NODES, PATIENCE, "waiting placeholders")
        keep_state(slurm)
        slurm.slurm.run("scontrol", "update", "PartitionName=scavenge", "State=UP")

    async with holding_all(slurm, tmp_path, let_start, patience_seconds=90) as scavenger:
        with no_slurmd(slurm):
            await asyncio.to_thread(forget, slurm)
            await wait_until_async(lambda: not agents(slurm), PATIENCE, "the agents to leave")
            assert capsys.readouterr().out.count("has forgotten that it runs") == NODES
        await held_anew(slurm, scavenger)
    wait_until(lambda: not slurm.placeholders() and not agents(slurm), 60, "the end of all placeholders")


@asynccontextmanager
async def holding_all(
    slurm: SlurmCluster, folder: Path, before: Callable[[], None] = lambda: None, **hold: object
) -> AsyncIterator[Running]:
    """A Scavenger that holds all nodes."""
    async with holding(slurm, folder / "state", **hold) as scavenger:
        watch = scavenger.watch()
        await asyncio.to_thread(before)
        await wait_until_async(lambda: set(watch.idle) == set(slurm.nodes), PATIENCE, "all nodes")
        yield scavenger


async def held_anew(slurm: SlurmCluster, scavenger: Running) -> None:
    """Wait until each node has one placeholder and one agent."""
    watch, one_each = scavenger.watch(), Counter(slurm.nodes)
    await wait_until_async(
        lambda: (
            Counter(slurm.placeholders().values()) == one_each
            and agents(slurm) == one_each
            and set(watch.idle) == set(slurm.nodes)
        ),
        PATIENCE,
        "one placeholder and one agent on each node",
    )


def keep_state(slurm: SlurmCluster) -> None:
    """Keep what slurmctld has stored of its jobs as they are now."""
    slurm.slurm.await_stored()
    folder = slurm.slurm.folder
    shutil.copy(folder / "state" / "job_state", folder / "kept")


def forget(slurm: SlurmCluster) -> None:
    """Kill slurmctld, and have it start with the kept state, as if it had stored nothing since."""
    folder = slurm.slurm.folder
    slurm.slurm.kill_controller()
    for name in ("job_state", "job_state.old"):
        shutil.copy(folder / "kept", folder / "state" / name)
    slurm.start_again()


@contextmanager
def no_slurmd(slurm: SlurmCluster) -> Iterator[None]:
    """The slurmd of all nodes stand still."""
    pids = [int(path.read_text()) for path in (slurm.slurm.folder / "pids").iterdir()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def agents(slurm: SlurmCluster) -> Counter[str]:
    """By node: how many agents of this cluster's placeholders live there."""
    found: Counter[str] = Counter()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "malletrain.agent" not in words or "python" not in Path(words[0]).name:
            continue
        try:
            if process.environ().get("SLURM_CONF") == slurm.environment["SLURM_CONF"]:
                found[words[words.index("--node") + 1]] += 1
        except psutil.Error:
            continue
    return found
