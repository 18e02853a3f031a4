"""A real Slurm that refuses placeholders, does not start them, or sees them end at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.cli.operate.doctor_slurm import examine_slurm
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.v1 import scavenger_pb2
from tests.scavenger.running import Running
from tests.slurm.cluster import Cluster, cluster, missing
from tests.slurm.holding import NODES, PLACEHOLDER, holding, placeholders
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

PATIENCE = 90.0
CHECKS_NO_ACCOUNTS = (23, 2)
"""From this release on, AllowAccounts needs AccountingStorageEnforce=associations."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm"), NODES) as running:
        yield running


@pytest.fixture(autouse=True)
def _configured(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield
    slurm.run("scontrol", "update", "PartitionName=scavenge", "State=UP", "AllowAccounts=ALL")
    slurm.run("scancel", f"--name={PLACEHOLDER}")


async def until_paused(scavenger: Running, failures: int = 2) -> scavenger_pb2.PlaceholderStatus:
    async with asyncio.timeout(PATIENCE):
        while not ((found := await placeholders(scavenger)).paused and found.failures_in_a_row >= failures):
            await asyncio.sleep(0.1)
    return found


def submitted(slurm: Cluster) -> int:
    """How many placeholders Slurm has seen so far, ended ones included."""
    names = ["--states=all", f"--name={PLACEHOLDER}"]
    return len(slurm.run("squeue", "--noheader", *names, "--format=%i").split())


async def test_a_partition_that_is_closed_refuses_and_its_words_are_told_until_it_opens(
    slurm: Cluster, tmp_path: Path
) -> None:
    slurm.run("scontrol", "update", "PartitionName=scavenge", "State=INACTIVE")
    async with holding(tmp_path) as scavenger:
        found = await until_paused(scavenger)
        assert "Required partition not available" in found.error
        assert submitted(slurm) == 0
        slurm.run("scontrol", "update", "PartitionName=scavenge", "State=UP")
        watch = scavenger.watch()
        await wait_until_async(lambda: len(watch.idle) == NODES, PATIENCE, "all nodes, after one probe")
        found = await placeholders(scavenger)
        assert (found.running, found.failures_in_a_row, found.error) == (NODES, 0, "")
        assert submitted(slurm) == NODES


async def test_a_partition_that_is_down_keeps_placeholders_waiting_and_few_are_submitted(
    slurm: Cluster, tmp_path: Path
) -> None:
    before = submitted(slurm)
    slurm.run("scontrol", "update", "PartitionName=scavenge", "State=DOWN")
    async with holding(tmp_path) as scavenger:
        found = await until_paused(scavenger)
        assert "PartitionDown" in found.error
        assert submitted(slurm) - before <= NODES + 2, "one for each node, then one per delay"
        slurm.run("scontrol", "update", "PartitionName=scavenge", "State=UP")
        watch = scavenger.watch()
        await wait_until_async(lambda: len(watch.idle) == NODES, PATIENCE, "all nodes, after one probe")
        assert (await placeholders(scavenger)).failures_in_a_row == 0


async def test_placeholders_with_a_wrong_account_are_few_and_slurm_says_which_accounts_it_allows(
    slurm: Cluster, tmp_path: Path
) -> None:
    if slurm.release >= CHECKS_NO_ACCOUNTS:
        pytest.skip("this Slurm checks no accounts without accounting: see the next test")
    before = submitted(slurm)
    slurm.run("scontrol", "update", "PartitionName=scavenge", "AllowAccounts=training")
    async with holding(tmp_path, options=["--account=wrong"]) as scavenger:
        found = await until_paused(scavenger)
        assert "can't use this partition (scavenge allows training)" in found.error
        assert found.running == 0
        assert submitted(slurm) - before <= NODES + 2, "one for each node, then one per delay"


async def test_accounts_that_slurm_does_not_check_keep_nobody_out_and_doctor_says_so(
    slurm: Cluster, tmp_path: Path
) -> None:
    if slurm.release < CHECKS_NO_ACCOUNTS:
        pytest.skip("this Slurm checks accounts: see the test before")
    slurm.run("scontrol", "update", "PartitionName=scavenge", "AllowAccounts=training")
    settings = SlurmSettings.model_validate({"partitions": ["main"], "hold": {"queue": "scavenge"}})
    findings = {finding.check: finding for finding in await asyncio.to_thread(lambda: list(examine_slurm(settings)))}
    assert not findings["AllowAccounts of scavenge"].ok
    async with holding(tmp_path, options=["--account=wrong"]) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: len(watch.idle) == NODES, PATIENCE, "all nodes, whatever the account")


async def test_placeholders_that_end_at_once_are_few_and_slurm_says_how_they_ended(
    slurm: Cluster, tmp_path: Path
) -> None:
    before = submitted(slurm)
    async with holding(tmp_path, python="/no/such/python") as scavenger:
        found = await until_paused(scavenger, failures=3)
        assert "ended before its agent had reported: FAILED (NonZeroExitCode)" in found.error
        assert f"its output is in {tmp_path}" in found.error
        assert submitted(slurm) - before <= NODES + 3, "one for each node, then one per delay"
