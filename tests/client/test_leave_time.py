"""How long a worker that was asked to leave has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.client.commands import Command, CommandType, put_command
from malletrain.client.job_context import LeaveRequest, leave_seconds, read_limits, seconds_left
from malletrain.client.ring import create_ring
from malletrain.client.session import Client
from malletrain.common.job_limits import JobLimits
from malletrain.common.launch_file import Launch, launch_document
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

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


TRAINING = """
import sys, time
import torch
from malletrain.client.distributed import ElasticTraining

model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training = ElasticTraining(model, optimizer, dataset_size=10**6, batch_per_worker=1, commit_seconds=0.05)

@training.run
def train():
    while True:
        training.optimizer.zero_grad()
        training.model(torch.ones(100)).sum().backward()
        training.step()
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("leave_seconds_", "code"), [(0.0001, 1), (60.0, 0)])
def test_a_training_without_time_to_save_leaves_with_its_last_checkpoint(
    tmp_path: Path, leave_seconds_: float, code: int
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    write_launch(tmp_path, JobLimits(save_seconds=0.0001, leave_grace_seconds=leave_seconds_))
    environment = {
        **os.environ,
        "MALLETRAIN_JOB_ID": "j000001",
        "MALLETRAIN_JOB_DIR": str(tmp_path),
        "MALLETRAIN_MONITOR": "127.0.0.1:1",
        "MALLETRAIN_STEP_TIMES": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    program = "from malletrain.client.distributed import init\ninit()\n" + TRAINING
    trainer = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True)
    checkpoints = tmp_path / "checkpoints"
    try:
        wait_until(lambda: len(list(checkpoints.glob("samples-*.pt"))) == 2, 60, "two checkpoints")
        trainer.terminate()
        said = trainer.communicate(timeout=60)[1]
    finally:
        trainer.kill()
    assert trainer.returncode == code, said
    stopped = int(said.rpartition("stopping at ")[2].split()[0])
    newest = max(int(path.stem.removeprefix("samples-")) for path in checkpoints.glob("samples-*.pt"))
    refused = f"no checkpoint at {stopped} samples, the last one counts: 0.0 MB take about"
    assert (refused in said) is (newest < stopped) is bool(code)
    assert list((tmp_path / "saving").iterdir()) == []
