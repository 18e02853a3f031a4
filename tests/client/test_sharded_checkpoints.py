"""Checkpoints of divided models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain.client.sharded_checkpoints import ShardedCheckpoints


@pytest.fixture
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_folder_that_another_worker_has_made_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers begin to save at the same time, and torch's writer makes the folder at each of them."""
    remove = shutil.rmtree

    def remove_and_lose_the_race(path: Path, **options: Any) -> None:
        remove(path, **options)
        path.mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", remove_and_lose_the_race)
    checkpoints = ShardedCheckpoints(tmp_path / "checkpoints", 30.0)
    checkpoints.save(24, lambda: {"weight": torch.ones(2)}, lambda: {"epoch": 1})
    checkpoints.wait()
    newest = checkpoints.newest()
    assert newest is not None
    assert checkpoints.is_saved(24)
    assert checkpoints.load_plain(newest) == {"epoch": 1}
