"""One run in W&B, MLflow and TensorBoard over a kill and a stop of its process, without services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from malletrain.common.job_folder import INSTANCE_FILE
from malletrain.common.tracker_runs import MLFLOW_RUN_FILE
from malletrain.common.worker_process import BOOTSTRAP
from tests.frameworks.test_live_trackers import wandb_steps
from tests.frameworks.tracked_trainer import BATCH
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("tracked_trainer.py")
STEPS, PATIENCE = 150, 180.0


def steps_of(folder: Path) -> list[int]:
    """The steps that all its processes have noted."""
    lines = [line for path in folder.glob("notes-*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line)["before"] // BATCH for line in lines if line.endswith("}")]


def train_until(folder: Path, tracker: str, variables: dict[str, str], is_over: Callable[[], bool], end: int) -> int:
    """Run it as a supervisor does, until something is true; then send it a signal, 0: none. Its exit status."""
    job = {
        "MALLETRAIN_JOB_ID": "j000001",
        "MALLETRAIN_JOB_DIR": str(folder),
        "MALLETRAIN_MONITOR": "127.0.0.1:1",
        "MALLETRAIN_BACKEND": "command",
        "MALLETRAIN_HOSTS": "n1:1",
        "MALLETRAIN_TRACKERS": tracker,
    }
    control, ours = os.pipe()
    theirs, status = os.pipe()
    head = [sys.executable, str(BOOTSTRAP), str(os.getpid()), str(control), str(status), "cold"]
    command = [*head, sys.executable, str(PROGRAM), tracker, str(STEPS * BATCH)]
    search_path = os.pathsep.join(map(str, [Path(__file__).parents[2], *sys.path]))
    environ = {**os.environ, **job, **variables, "PYTHONPATH": search_path}
    worker = subprocess.Popen(command, env=environ, pass_fds=(control, status), cwd=folder, start_new_session=True)
    try:
        os.write(ours, b"{}\n")
        wait_until(lambda: is_over() or worker.poll() is not None, PATIENCE, "what is waited for")
        if end:
            worker.send_signal(end)
        return worker.wait(PATIENCE)
    finally:
        worker.kill()
        worker.wait()
        for descriptor in (control, ours, theirs, status):
            os.close(descriptor)


def wandb_written(folder: Path) -> list[int]:
    """The steps that W&B has written to its files."""
    return [step for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")) for step in wandb_steps(path)]


def train(folder: Path, tracker: str, variables: dict[str, str]) -> Counter[int]:
    """Kill it after its checkpoint, stop it later on, and let it complete; how often each step was trained with."""
    (folder / INSTANCE_FILE).write_text("0123456789abcdef\n")

    def is_ready() -> bool:
        return len(steps_of(folder)) >= 25 and (tracker != "wandb" or len(wandb_written(folder)) > 20)

    killed = train_until(folder, tracker, variables, is_ready, signal.SIGKILL)
    assert killed == -signal.SIGKILL
    assert train_until(folder, tracker, variables, lambda: max(steps_of(folder)) >= 120, signal.SIGTERM) == 0
    assert train_until(folder, tracker, variables, lambda: False, 0) == 0
    found = Counter(steps_of(folder))
    assert set(found) == set(range(STEPS))
    assert max(found.values()) == 2, "the kill had steps trained again"
    return found


def test_wandb_has_one_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb: make test-frameworks")
    trained = train(tmp_path, "wandb", {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"})
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == ["run-malletrain-0123456789abcdef.wandb"] * 3
    steps = Counter(wandb_written(tmp_path))
    assert set(steps) == set(range(STEPS))
    assert steps <= trained, "a kill may cost the last values that W&B had not written"


def test_mlflow_has_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow-skinny: make test-frameworks")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    trained = train(tmp_path, "mlflow", {"MLFLOW_TRACKING_URI": uri})
    client = MlflowClient(uri)
    (run,) = client.search_runs(["0"])
    assert run.info.run_id == (tmp_path / MLFLOW_RUN_FILE).read_text().strip()
    assert run.info.status == "FINISHED"
    steps = Counter(value.step for value in client.get_metric_history(run.info.run_id, "loss"))
    assert set(steps) == set(range(STEPS))
    assert steps <= trained
    assert max(steps.values()) == 2, "steps trained again are there twice"
    assert run.data.metrics["loss"] == pytest.approx(1 / (1 + (STEPS - 1) * BATCH))


def test_tensorboard_has_one_run_with_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("tensorboard", reason="needs tensorboard: make test-frameworks")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, "tensorboard", {})
    found = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    assert [event.step for event in found.Scalars("loss")] == list(range(STEPS))
