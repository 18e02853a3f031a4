"""One run in W&B, MLflow and TensorBoard over a change of scale, a kill and a restart, each in its offline mode."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from malletrain.common.tracker_runs import MLFLOW_RUN_FILE
from tests.frameworks.tracked_trainer import BATCH
from tests.training.live import NODES, PATIENCE, LiveTraining, live_training

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("tracked_trainer.py")
STEPS = 150
PROCESSES = 3


def train(tmp_path: Path, tracker: str, variables: dict[str, str], check: Callable[[LiveTraining], None]) -> None:
    """Grow it from one node to two, kill it, and let it complete; then check what its tracker has."""
    env = {"MALLETRAIN_TRACKERS": tracker, **variables}
    options = [part for name, value in env.items() for part in ("--env", f"{name}={value}")]
    arguments = (tracker, str(STEPS * BATCH))
    with live_training(tmp_path, PROGRAM, *arguments, backend="command", notes=True, options=options) as training:
        training.wait(lambda: bool(training.steps()), PATIENCE, "the first step")
        training.wait_scale(1)
        training.give(next(node for node in NODES if node not in training.newest(0)["hosts"]))
        training.wait_scale(2)
        training.kill(0)
        training.wait_completed(PATIENCE)
        notes = list(training.folder.glob("notes-*.jsonl"))
        assert len(notes) == PROCESSES, "one process before the growth, one after it, one after the kill"
        check(training)


def logged_steps(training: LiveTraining) -> Counter[int]:
    """How often each step was trained with."""
    return Counter(step["before"] // BATCH for step in training.steps())


def test_wandb_has_one_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb: make test-frameworks")

    def check(training: LiveTraining) -> None:
        instance = (training.folder / "instance-id").read_text().strip()
        files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
        assert [path.name for path in files] == [f"run-malletrain-{instance}.wandb"] * PROCESSES
        steps = Counter(step for path in files for step in wandb_steps(path))
        assert set(steps) == set(range(STEPS))
        assert steps <= logged_steps(training), "a kill may cost the last values that W&B had not written"

    train(tmp_path, "wandb", {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}, check)


def test_mlflow_has_one_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow-skinny: make test-frameworks")
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()

    def check(training: LiveTraining) -> None:
        client = MlflowClient(uri)
        runs = client.search_runs(["0"])
        assert [run.info.run_id for run in runs] == [(training.folder / MLFLOW_RUN_FILE).read_text().strip()]
        assert runs[0].info.status == "FINISHED"
        values = client.get_metric_history(runs[0].info.run_id, "loss")
        steps = Counter(value.step for value in values)
        assert set(steps) == set(range(STEPS))
        assert steps <= logged_steps(training)
        assert max(steps.values()) > 1, "steps trained again are there twice"
        assert runs[0].data.metrics["loss"] == pytest.approx(1 / (1 + (STEPS - 1) * BATCH))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        train(tmp_path, "mlflow", {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}, check)


def test_tensorboard_has_one_run_with_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("tensorboard", reason="needs tensorboard: make test-frameworks")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def check(training: LiveTraining) -> None:
        found = EventAccumulator(str(training.folder / "tensorboard"), size_guidance={"scalars": 0})
        found.Reload()
        assert [event.step for event in found.Scalars("loss")] == list(range(STEPS))
        assert max(logged_steps(training).values()) > 1, "the kill had steps trained again"

    train(tmp_path, "tensorboard", {}, check)


def wandb_steps(path: Path) -> Iterator[int]:
    """The steps of a file of W&B: a log as LevelDB writes it, of messages of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    for content in log_records(path.read_bytes()[7:]):
        record = Record()
        record.ParseFromString(content)
        if record.HasField("history"):
            yield record.history.step.num


def log_records(data: bytes, block: int = 32768, skipped: int = 7) -> Iterator[bytes]:
    """Records of a log: parts with a checksum (4 bytes), a length (2) and a kind (1), in blocks.

    Args:
        data: The log without its first `skipped` bytes, which are the head of the file and count for the first block.
        block: Bytes of a block; no part's head lies across two.
        skipped: As above.
    """
    whole, last = 1, 4
    place, parts = 0, b""
    while place + 7 <= len(data):
        left = block - (place + skipped) % block
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts = (b"" if kind == whole else parts) + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (whole, last):
            yield parts
            parts = b""
