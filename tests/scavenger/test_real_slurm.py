"""The source slurm on a real Slurm: slurmctld and several slurmd on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.cli.operate.doctor_slurm import examine_slurm
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source
from malletrain.v1 import scavenger_pb2
from tests.scavenger.running import releasing, running_scavenger
from tests.scavenger.test_reclaim_hooks import KNOWN, token_file
from tests.scavenger.test_scheduler_sources import following
from tests.support.waiting import wait_until_async

LOCAL_CLUSTER = Path(__file__).parents[2] / "deploy/slurm/local-cluster.sh"
PROLOG = LOCAL_CLUSTER.with_name("prolog.sh")
NODES = ("n001", "n002", "n003", "n004")
SLURM = {"partitions": ["main", "scavenge"], "interval_seconds": 0.2, "queue_interval_seconds": 0.5}

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def control(folder: Path) -> dict[str, str]:
    """What the script that starts and ends the cluster is to know."""
    return {**os.environ, "NODES": str(len(NODES)), "BASE_PORT": "17400", "PROLOG": str(folder / "prolog")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A cluster of four nodes, as `main` and `scavenge`; its commands find it by SLURM_CONF."""
    for program in ("sinfo", "slurmctld", "slurmd", "munged"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed (Debian: slurmctld slurmd slurm-client munge)")
    # Munge's socket has a short name, and everybody must be able to look into its folder.
    folder = Path(tempfile.mkdtemp(prefix="mt-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    # Without its configuration the Prolog finds no grpcurl, says so to syslog, and lets the job start.
    script = f"#!/bin/sh\nMALLETRAIN_PROLOG_CONFIG={folder}/prolog.conf exec {PROLOG}\n"
    (folder / "prolog").write_text(script)
    (folder / "prolog").chmod(0o755)
    try:
        subprocess.run([LOCAL_CLUSTER, "up", folder], env=control(folder), check=True, timeout=120)
        yield folder
    finally:
        subprocess.run([LOCAL_CLUSTER, "down", folder], env=control(folder), check=False, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _configured(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster / "slurm.conf"))


def sbatch(*options: str, seconds: int = 60) -> str:
    """Submit a job that sleeps; its identifier."""
    script = f"#!/bin/sh\nexec sleep {seconds}\n"
    command = ["sbatch", "--parsable", "--output=/dev/null", *options]
    done = subprocess.run(command, input=script, text=True, capture_output=True, check=True, cwd="/", timeout=30)
    return done.stdout.strip()


def scancel(*jobs: str) -> None:
    subprocess.run(["scancel", "--signal=KILL", "--full", *jobs], check=False, timeout=30)
    subprocess.run(["scancel", *jobs], check=True, timeout=30)


async def test_the_service_survives_a_slurmctld_that_is_killed(cluster: Path, tmp_path: Path) -> None:
    # First: slurmctld keeps what it knows now and then, and one that is killed comes back to jobs and reservations that
    # were deleted seconds before.
    section = {"source": "slurm", "slurm": SLURM | {"timeout_seconds": 2, "stale_seconds": 3}, "debounce_seconds": 0}
    async with running_scavenger(tmp_path, section) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == set(NODES), timeout=30)
        pid = int((cluster / "slurmctld.pid").read_text())
        os.kill(pid, 9)
        await wait_until_async(lambda: watch.idle == set(), timeout=60)
        status = await scavenger.stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=5)
        assert status.stale
        subprocess.run([LOCAL_CLUSTER, "up", cluster], env=control(cluster), check=True, timeout=120)
        await wait_until_async(lambda: watch.idle == set(NODES), timeout=60)


async def test_nodes_become_busy_and_idle_with_real_jobs() -> None:
    source = slurm_source(SlurmSettings.model_validate(SLURM), SystemClock())
    async with following(source) as follower:
        await wait_until_async(lambda: follower.idle == set(NODES), timeout=30)
        assert {facts.pool for facts in follower.seen[-1].facts.values()} == {"main"}
        job = sbatch("--partition=main", "--nodes=1", "--nodelist=n002")
        await wait_until_async(lambda: follower.idle == {"n001", "n003", "n004"}, timeout=30)
        # A job that needs all nodes can't start: backfill holds what is idle for it, and says from when.
        waiting = sbatch("--partition=main", "--nodes=4", "--time=5")
        await wait_until_async(lambda: follower.seen[-1].ends.keys() == {"n001", "n003", "n004"}, timeout=30)
        assert follower.idle == {"n001", "n003", "n004"}
        assert all(end > follower.seen[-1].time for end in follower.seen[-1].ends.values())
        scancel(waiting)
        scancel(job)
        await wait_until_async(lambda: follower.idle == set(NODES) and not follower.seen[-1].ends, timeout=30)
        assert all(status.failures_in_a_row == 0 for status in source.status().queries)


async def test_drained_and_reserved_nodes_leave() -> None:
    source = slurm_source(SlurmSettings.model_validate(SLURM | {"reservations_interval_seconds": 0.5}), SystemClock())

    def scontrol(*words: str) -> None:
        subprocess.run(["scontrol", *words], check=True, timeout=30, capture_output=True)

    async with following(source) as follower:
        await wait_until_async(lambda: follower.idle == set(NODES), timeout=30)
        scontrol("update", "NodeName=n001", "State=DRAIN", "Reason=memory")
        await wait_until_async(lambda: follower.idle == {"n002", "n003", "n004"}, timeout=30)
        scontrol("update", "NodeName=n001", "State=RESUME")
        await wait_until_async(lambda: follower.idle == set(NODES), timeout=30)
        later = ["ReservationName=later", "StartTime=now+1hour", "Duration=60", "Users=root", "Nodes=n003"]
        scontrol("create", "reservation", *later)
        await wait_until_async(lambda: "n003" in follower.seen[-1].ends, timeout=30)
        assert follower.idle == set(NODES)
        now = ["ReservationName=now", "StartTime=now", "Duration=60", "Users=root", "Nodes=n004", "Flags=MAINT"]
        scontrol("create", "reservation", *now)
        await wait_until_async(lambda: follower.idle == {"n001", "n002", "n003"}, timeout=30)
        scontrol("delete", "ReservationName=now")
        scontrol("delete", "ReservationName=later")
        await wait_until_async(lambda: follower.idle == set(NODES) and not follower.seen[-1].ends, timeout=30)


def test_the_doctor_finds_this_cluster_well() -> None:
    section = SlurmSettings.model_validate(SLURM | {"partitions": ["main"], "hold": {"queue": "scavenge"}})
    assert [finding for finding in examine_slurm(section) if not finding.ok] == []
    watching = SlurmSettings.model_validate(SLURM | {"partitions": ["main"]})
    assert {finding.check for finding in examine_slurm(watching) if not finding.ok} <= {"ssh"}
    unknown = SlurmSettings.model_validate(SLURM | {"partitions": ["nope"], "hold": {"queue": "neither"}})
    wrong = {finding.check for finding in examine_slurm(unknown) if not finding.ok}
    assert wrong == {"query nodes", "partition nope", "partition neither"}


async def test_the_prolog_frees_a_node_before_the_jobs_first_command(
    cluster: Path, tmp_path: Path, grpcurl: str
) -> None:
    # The poll is too seldom to notice: only the Prolog can have told.
    section = {"source": "slurm", "slurm": SLURM | {"interval_seconds": 3600}, "debounce_seconds": 0}
    began = cluster / "began"
    async with releasing() as (releases, address), running_scavenger(tmp_path, section, address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == set(NODES), timeout=30)
        config = f"MALLETRAIN_GRPCURL='{grpcurl}'\nMALLETRAIN_SCAVENGER={scavenger.address}\n"
        config += f"MALLETRAIN_GRPCURL_OPTIONS=({' '.join(KNOWN)})\n"
        config += f"MALLETRAIN_TOKEN_FILE='{token_file(tmp_path)}'\n"
        (cluster / "prolog.conf").write_text(config + "MALLETRAIN_DEADLINE_SECONDS=20\n")
        script = f"#!/bin/sh\ndate > {began}\nexec sleep 60\n"
        command = ["sbatch", "--parsable", "--output=/dev/null", "--partition=main", "--nodelist=n003"]
        done = subprocess.run(command, input=script, text=True, capture_output=True, check=True, cwd="/", timeout=30)
        try:
            await wait_until_async(lambda: releases.asked == [["n003"]], timeout=30)
            assert watch.idle == {"n001", "n002", "n004"}
            assert not began.exists()
            releases.may_release.set()
            await wait_until_async(began.exists, timeout=30)
        finally:
            (cluster / "prolog.conf").unlink()
            scancel(done.stdout.strip())
