"""How long a worker that was asked to leave has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.client.commands import Command, CommandType, put_command
from malletrain.client.leave_time import LeaveRequest, leave_seconds, read_limits, seconds_left
from malletrain.client.ring import create_ring
from malletrain.client.session import Client
from malletrain.common.job_limits import JobLimits
from malletrain.common.launch_file import Launch, launch_document

LIMITS = JobLimits(save_seconds=100.0, leave_grace_seconds=20.0, release_grace_seconds=5.0)


def write_launch(folder: Path, limits: JobLimits) -> None:
    launch = Launch("j000001", "torchrun", ("python",), "/", {}, 1, "/socket", 1, limits=limits)
    (folder / "launch.json").write_text(json.dumps(launch_document(launch)))


@pytest.mark.parametrize(
    ("request_", "limits", "seconds"),
    [
        (LeaveRequest(0.0), LIMITS, 120.0),
        (LeaveRequest(0.0, released=True), LIMITS, 120.0),
        (LeaveRequest(0.0, one_node=True), LIMITS, 120.0),
        (LeaveRequest(0.0, released=True, one_node=True), LIMITS, 5.0),
        # The operator's default is not known here.
        (LeaveRequest(0.0, released=True, one_node=True), JobLimits(), 1860.0),
    ],
)
def test_the_longest_time_that_it_may_have(request_: LeaveRequest, limits: JobLimits, seconds: float) -> None:
    assert leave_seconds(request_, limits) == seconds


def test_the_limits_are_those_of_the_launch(tmp_path: Path) -> None:
    assert read_limits(tmp_path) is None
    assert seconds_left(LeaveRequest(0.0), tmp_path) is None
    write_launch(tmp_path, LIMITS)
    assert read_limits(tmp_path) == LIMITS
    assert seconds_left(LeaveRequest(1000.0), tmp_path, lambda: 1030.0) == 90.0
    (tmp_path / "launch.json").write_text("[]")
    assert read_limits(tmp_path) is None


def test_a_client_counts_from_sigterm(tmp_path: Path) -> None:
    write_launch(tmp_path, LIMITS)
    code = (
        "import os, signal, time\n"
        "from malletrain.client import install_signal_handler, seconds_to_leave, should_stop\n"
        "install_signal_handler()\n"
        "before = seconds_to_leave()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "began = time.monotonic()\n"
        "while time.monotonic() < began + 0.2: pass\n"
        "print(before, seconds_to_leave())"
    )
    environment = {
        "MALLETRAIN_JOB_ID": "j000001",
        "MALLETRAIN_JOB_DIR": str(tmp_path),
        "MALLETRAIN_MONITOR": "127.0.0.1:1",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    before, left = done.stdout.split()
    assert before == "None"
    assert 110.0 < float(left) <= 119.8


def test_the_only_node_of_a_job_is_released(tmp_path: Path) -> None:
    write_launch(tmp_path, LIMITS)
    environment = {
        "MALLETRAIN_JOB_ID": "j000001",
        "MALLETRAIN_JOB_DIR": str(tmp_path),
        "MALLETRAIN_MONITOR": "127.0.0.1:1",
        "MALLETRAIN_SLOTS_PER_NODE": "2",
        "RANK": "0",
        "WORLD_SIZE": "2",
    }
    client = Client(environment, {})
    client._ring = ring = create_ring(4)
    assert client.seconds_to_leave() is None
    put_command(ring, Command("a", CommandType.STOP))
    assert 119.0 < (client.seconds_to_leave() or 0.0) <= 120.0
    put_command(ring, Command("b", CommandType.RELEASE_REQUESTED))
    assert 4.0 < (client.seconds_to_leave() or 0.0) <= 5.0
    environment["WORLD_SIZE"] = "4"
    assert 119.0 < (client.seconds_to_leave() or 0.0) <= 120.0
    client._drop_ring()
