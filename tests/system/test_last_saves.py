"""`malletrain up` ends: jobs have as long for their last checkpoint as their owners have asked for."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, start, write_settings

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(300)]

SECONDS = 23.0
"""Longer than services have to end that no job keeps."""
SCRIPT = """\
import pathlib, signal, sys, time

def save(*_):
    folder.joinpath("begun").touch()
    time.sleep(float(sys.argv[2]))
    folder.joinpath("saved").touch()
    sys.exit(1)

folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, save)
folder.joinpath("runs").touch()
while True:
    signal.pause()
"""
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
standby_memory_mib = 0
"""


def running(folder: Path) -> Deployment:
    """Services and a job that takes long to save."""
    write_settings(folder, SETTINGS)
    deployment = start(folder)
    wait_until(deployment.serves, 60, "all services serving")
    script = folder / "saves.py"
    script.write_text(SCRIPT)
    words = "--backend", "command", "--max", "1", "--release-grace", "30", "--", sys.executable, str(script)
    submitted = deployment.command("submit", *words, str(folder), str(SECONDS))
    assert submitted.returncode == 0, submitted.stderr
    wait_until((folder / "runs").exists, 60, "the job runs")
    return deployment


def processes(folder: Path) -> list[int]:
    return [entry.id.pid for entry in find_processes(lambda marks: marks.get(JOB_DIR, "").startswith(str(folder)))]


def test_it_waits_for_a_save_that_takes_longer_than_services_do(tmp_path: Path) -> None:
    deployment = running(tmp_path)
    deployment.process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "begun").exists, 30, "the save begins")
    assert deployment.process.wait(90) == 0
    assert (tmp_path / "saved").exists()
    assert not processes(tmp_path)
    assert "waiting for jobs to save" in (tmp_path / "up.log").read_text()


def test_another_signal_ends_it_at_once_but_not_the_same_one_by_two_ways(tmp_path: Path) -> None:
    deployment = running(tmp_path)
    deployment.process.send_signal(signal.SIGINT)
    deployment.process.send_signal(signal.SIGTERM)
    log = tmp_path / "up.log"
    wait_until(lambda: "waiting for jobs to save" in log.read_text(), 30, "people are told")
    assert (tmp_path / "begun").exists()
    deployment.process.send_signal(signal.SIGINT)
    deployment.process.wait(60)
    assert not (tmp_path / "saved").exists()
    # As after a kill, the job goes on until it has saved; the next JobManager would find it.
    wait_until(lambda: not processes(tmp_path), 60, "the end of the job")
