"""Nothing of a run is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.rescaling.launching import LauncherError
from benchmarks.rescaling.processes import loopback, marked, started
from benchmarks.rescaling.supervisor import Supervisor
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
RESCALE = [sys.executable, str(ROOT / "benchmarks" / "rescale.py")]
RUNAWAY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


def test_a_process_that_has_left_its_session_is_found(tmp_path: Path) -> None:
    with started([sys.executable, "-c", RUNAWAY], tmp_path, {}):
        wait_until(lambda: len(marked(tmp_path)) == 2, 30, "the runaway")
    assert marked(tmp_path) == []


def test_the_loopback_interface_is_up() -> None:
    assert psutil.net_if_stats()[loopback()].isup


def test_a_launcher_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    launcher = Supervisor("pigeons", "pigeons", "elastic_horovod.py")
    with pytest.raises(LauncherError, match="ended with 2"), launcher.start(tmp_path, ["n1"]):
        pass


def test_a_launcher_of_no_such_name_is_wrong_use() -> None:
    done = subprocess.run([*RESCALE, "--only", "pigeons"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "horovodrun" in done.stderr


@pytest.mark.horovod
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.training)])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    command = [*RESCALE, "--only", "horovodrun" if number == signal.SIGINT else "horovod"]
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=out, stderr=out)
    try:
        folder = wait_until(lambda: list(tmp_path.glob("rescale-*")), 60, "the job's folder")[0]
        wait_until(lambda: len(marked(folder)) >= 2, 60, "its workers")
        run.send_signal(number)
        assert run.wait(60) == 130
    finally:
        run.kill()
    assert marked(folder) == []
    assert not folder.exists()
