"""COMMIT, with loader processes: the state is on disk, and a training that loses all workers goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.v1 import monitor_pb2
from tests.client.peers import RecordingMonitor
from tests.frameworks.needing import need
from tests.frameworks.plain_process import CLOSE, farthest, reference
from tests.support.generations import Launcher
from tests.support.waiting import wait_until
from tests.training.amp_trainer import BATCH, SIZE

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(500)]

SCRIPT = Path(__file__).with_name("small_trainer.py")
EPOCHS = 3
PATIENCE = 180.0
PRELOADED = ("lightning", "accelerate", "transformers.trainer")


@pytest.fixture
def monitor() -> Iterator[RecordingMonitor]:
    peer = RecordingMonitor()
    peer.start()
    yield peer
    peer.stop()


def positions(monitor: RecordingMonitor) -> list[int]:
    return [row[2] for records in list(monitor.records.values()) for row in list(records.values())]


def saved(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in (folder / "checkpoints").glob("samples-*.pt"))


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_what_is_committed_on_command_is_where_the_next_workers_go_on(
    name: str, tmp_path: Path, monitor: RecordingMonitor
) -> None:
    need(name)
    variables = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "1"}
    launcher = Launcher(SCRIPT, tmp_path, {**variables, "MALLETRAIN_MONITOR": monitor.address}, PRELOADED)
    arguments = (name, "--epochs", str(EPOCHS), "--loader-processes", "2", "--on-command")
    with launcher.generation(2, *arguments, "--sample-seconds", "0.05"):
        wait_until(lambda: max(positions(monitor), default=0) >= 2 * BATCH, PATIENCE, "two batches")
        assert not saved(tmp_path)
        monitor.pending = [monitor_pb2.Command(id="c1", type=monitor_pb2.COMMAND_TYPE_COMMIT)]
        wait_until(lambda: saved(tmp_path), PATIENCE, "the commit on disk")
        before = saved(tmp_path)
    # All workers are killed at once.
    assert len(before) == 1
    assert 2 * BATCH <= before[0] < EPOCHS * SIZE
    with launcher.generation(1, *arguments) as running:
        assert running.join(PATIENCE) == [0], (tmp_path / "0.log").read_text()[-3000:]
    assert f"resumed at {before[0]} samples" in (tmp_path / "0.log").read_text()
    assert json.loads((tmp_path / "completed.json").read_text())["samples"] == EPOCHS * SIZE
    found = json.loads((tmp_path / "weights.json").read_text())
    assert farthest(found, reference(EPOCHS)) <= CLOSE
