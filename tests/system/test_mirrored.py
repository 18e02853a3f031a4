"""`malletrain submit --mirror`: a job of the site's queue and ours live and end together, also on a real Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]

SECONDS = 120.0
ROOT = Path(__file__).parents[2]
LOCAL_CLUSTER = ROOT / "deploy/slurm/local-cluster.sh"
WRAPPER = ROOT / "deploy/slurm/malletrain-job"
SCRIPT = Path(__file__).with_name("scripts") / "steady.py"
SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
reconcile_seconds = 0.1
restart_backoff_seconds = 0.1
"""
ENDINGS = [("go", 0, "COMPLETED", "COMPLETED"), ("fail", 3, "FAILED", "FAILED")]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("mirrored"), SETTINGS, seconds=SECONDS) as deployment:
        yield deployment


def arguments(folder: Path, status: int = 0) -> list[str]:
    """Of a job that trains until `folder/go` is there, and ends with a status."""
    folder.mkdir(exist_ok=True)
    shape = ("--backend", "command", "--profile", "never", "--min", "1", "--max", "1", "--max-restarts", "0")
    return [*shape, "--", sys.executable, str(SCRIPT), str(folder), str(status)]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_the_mirror_cancels_the_job(system: Deployment, tmp_path: Path, number: signal.Signals) -> None:
    told = tmp_path / "err"
    with told.open("wb") as errors, (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-m", "malletrain.cli.main", "submit", "--mirror", *arguments(tmp_path / "job")]
        mirror = subprocess.Popen(command, cwd=system.folder, env=environment(), stdout=out, stderr=errors)
    try:
        wait_until(lambda: "RUNNING" in told.read_text(), SECONDS, "a running job")
        mirror.send_signal(number)
        assert mirror.wait(SECONDS) == 4
    finally:
        mirror.kill()
    job_id = (tmp_path / "out").read_text().strip()
    assert system.state(job_id) == "CANCELLED"
    assert f"{number.name}: the site's job ends, so that {job_id} is cancelled" in told.read_text()


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Two nodes; the commands find the cluster by SLURM_CONF."""
    for program in ("sbatch", "slurmctld", "slurmd", "munged"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"no {program} here")
    folder = Path(tempfile.mkdtemp(prefix="mt-slurm-", dir="/tmp"))
    control = {**os.environ, "NODES": "2", "BASE_PORT": "17650"}
    done = subprocess.run(
        [LOCAL_CLUSTER, "up", folder], env=control, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield
    subprocess.run([LOCAL_CLUSTER, "down", folder], env=control, capture_output=True, timeout=120, check=False)
    shutil.rmtree(folder, ignore_errors=True)


class SiteJob:
    """A job of Slurm that mirrors one of ours."""

    def __init__(self, system: Deployment, folder: Path, words: Sequence[str]) -> None:
        self.told = folder / "slurm.out"
        launcher = folder / "malletrain"
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m malletrain.cli.main "$@"\n', encoding="utf-8")
        launcher.chmod(0o755)
        options = ["--parsable", "--partition=scavenge", f"--output={self.told}", f"--chdir={system.folder}"]
        done = subprocess.run(
            ["sbatch", *options, str(WRAPPER), *words],
            env=environment() | {"MALLETRAIN": str(launcher)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        self.id = done.stdout.strip()

    def says(self, text: str) -> bool:
        return self.told.exists() and text in self.told.read_text()

    def shown(self) -> str:
        """What Slurm shows of it."""
        return subprocess.run(
            ["scontrol", "show", "job", self.id], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def ended(self) -> bool:
        return "JobState=RUNNING" not in self.shown() and "JobState=COMPLETING" not in self.shown()

    @property
    def job_id(self) -> str:
        return self.told.read_text().split()[0]


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(("ending", "status", "ours", "theirs"), ENDINGS)
def test_a_job_of_slurm_ends_as_ours_does(
    system: Deployment, tmp_path: Path, ending: str, status: int, ours: str, theirs: str
) -> None:
    folder = tmp_path / "job"
    site = SiteJob(system, tmp_path, arguments(folder, status=int(ending == "fail")))
    try:
        wait_until(lambda: site.says("RUNNING"), SECONDS, "a running job")
        wait_until(lambda: f"Comment={site.job_id} RUNNING, 1 nodes" in site.shown(), SECONDS, "its comment")
    finally:
        (folder / "go").touch()
    wait_until(site.ended, SECONDS, "the end of the site's job")
    assert f"JobState={theirs}" in site.shown()
    assert f"ExitCode={status}:0" in site.shown()
    assert system.state(site.job_id) == ours


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_scancel_cancels_our_job(system: Deployment, tmp_path: Path) -> None:
    site = SiteJob(system, tmp_path, arguments(tmp_path / "job"))
    wait_until(lambda: site.says("RUNNING"), SECONDS, "a running job")
    subprocess.run(["scancel", site.id], check=True, timeout=60)
    wait_until(lambda: system.state(site.job_id) == "CANCELLED", SECONDS, "the end of our job")
    wait_until(site.ended, SECONDS, "the end of the site's job")
    assert "JobState=CANCELLED" in site.shown()
