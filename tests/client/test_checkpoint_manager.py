from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client.checkpoint_manager import CheckpointManager


class State:
    """What a checkpoint is made of; counts how often it is asked for."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.asked = 0

    def __call__(self) -> dict[str, Any]:
        self.asked += 1
        return {"model": {}, "optimizer": {}, "samples": self.samples}


def test_what_is_on_disk_already_is_not_saved_again(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 30.0)
    state = State(40)
    assert not manager.is_saved(40)
    assert manager.save_and_wait(40, state)
    assert manager.save_and_wait(40, state)
    assert state.asked == 1

    # The next process has it from the disk.
    again = CheckpointManager(tmp_path, 30.0)
    loaded = again.load()
    assert loaded is not None
    again.resumed(loaded["samples"])
    assert again.save_and_wait(40, state)
    assert state.asked == 1
    assert again.save_and_wait(48, State(48))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "samples-000000000000040.pt",
        "samples-000000000000048.pt",
    ]


def test_what_is_under_way_is_waited_for(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 30.0)
    state = State(40)
    manager.save(40, state)
    assert manager.save_and_wait(40, state)
    assert state.asked == 1


def test_what_can_not_be_saved_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    manager = CheckpointManager(tmp_path / "checkpoints", 30.0)
    assert not manager.save_and_wait(40, State(40))
    assert "the checkpoint at 40 samples can't be written" in capsys.readouterr().err


def test_without_a_folder_there_is_nothing_to_wait_for() -> None:
    state = State(40)
    assert CheckpointManager(None, 30.0).save_and_wait(40, state)
    assert state.asked == 0
