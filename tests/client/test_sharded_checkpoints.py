"""Checkpoints of divided models."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain.client import sharded_checkpoints
from malletrain.client.checkpoints import CheckpointRetention
from malletrain.client.disk_room import DiskRoom
from malletrain.client.sharded_checkpoints import ShardedCheckpoints
from malletrain.client.snapshots import tensor_bytes
from tests.support.ports import free_port


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


class Clock:
    """A clock that goes on as it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def save(checkpoints: ShardedCheckpoints, samples: int, *, last: bool = False) -> bool:
    """Save as `ShardedTraining` does; whether the state is on disk."""
    weight = torch.full((1000,), float(samples))
    if checkpoints.may_begin(samples, lambda: tensor_bytes([weight]), last=last):
        checkpoints.remove_old()
        checkpoints.save(samples, lambda: {"weight": weight}, dict, last=last)
        checkpoints.wait()
    return checkpoints.is_saved(samples)


def samples_on(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("samples-")) for path in folder.iterdir())


@pytest.mark.usefixtures("group")
def test_as_many_are_kept_as_is_said(tmp_path: Path) -> None:
    checkpoints = ShardedCheckpoints(tmp_path, 30.0, retention=CheckpointRetention(3))
    for samples in range(1, 6):
        assert save(checkpoints, samples)
    checkpoints.remove_old()
    assert samples_on(tmp_path) == [3, 4, 5]
    # Each has more than 4000 bytes.
    by_size = ShardedCheckpoints(tmp_path, 30.0, retention=CheckpointRetention(3, 5000))
    by_size.remove_old()
    assert samples_on(tmp_path) == [5]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("last", [False, True])
def test_without_room_none_is_begun_and_a_full_disk_is_noted(
    last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted: list[BaseException | None] = []
    monkeypatch.setattr(sharded_checkpoints, "note_save", lambda error=None, **_: noted.append(error))
    free = [3999]
    checkpoints = ShardedCheckpoints(tmp_path, 30.0, room=DiskRoom(free=lambda _: free[0]))
    # The size of the first one is that of its tensors.
    assert not save(checkpoints, 1, last=last)
    assert list(tmp_path.iterdir()) == []
    assert [getattr(error, "errno", None) for error in noted] == [errno.ENOSPC]
    assert not save(checkpoints, 2, last=last)
    assert capsys.readouterr().err.count("a checkpoint needs 0.0 MB, 0.0 MB are free") == 1
    free[0] = 10**9
    assert save(checkpoints, 3, last=last)
    assert noted[-1] is None
    assert save(checkpoints, 4, last=last)
    # The next one needs as much as the last one, and an older one makes room for it.
    assert len(samples_on(tmp_path)) == 2
    free[0] = 4000
    assert not save(checkpoints, 5, last=last)
    assert samples_on(tmp_path) == [4]
    assert capsys.readouterr().err.count("a checkpoint needs") == 1, "again, after it has been better"


@pytest.mark.usefixtures("group")
def test_what_can_not_be_saved_in_time_is_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock, left = Clock(), [0.5]
    checkpoints = ShardedCheckpoints(tmp_path, 30.0, clock, seconds_left=lambda: left[0])

    def slow() -> dict[str, Any]:
        clock.now += 2.0
        return {"weight": torch.zeros(1000)}

    checkpoints.save(1, slow, dict, last=True)
    checkpoints.wait()
    assert not save(checkpoints, 2, last=True)
    assert "no checkpoint at 2 samples, the last one counts:" in capsys.readouterr().err
    assert samples_on(tmp_path) == [1]
    # While the training goes on it takes as long as it takes.
    assert save(checkpoints, 3)
    left[0] = 10.0
    assert save(checkpoints, 4, last=True)


@pytest.mark.usefixtures("group")
def test_written_in_the_loop_they_take_their_share_at_most(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    checkpoints = ShardedCheckpoints(tmp_path, 30.0, clock, memory=lambda: 4096)

    def slow() -> dict[str, Any]:
        clock.now += 20.0
        return {"weight": torch.zeros(1000)}

    for samples in (1, 2):
        checkpoints.save(samples, slow, dict)
        assert checkpoints.is_saved(samples)
        clock.now += 399.0
        assert not checkpoints.is_due(committing=True)
        clock.now += 2.0
        assert checkpoints.is_due(committing=False)
    assert capsys.readouterr().err.count("does not fit in memory (0.0 MB available)") == 1


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("by_disk", "expected"), [(True, 2.0), (False, 0.0)])
def test_what_a_rescale_by_way_of_the_disk_takes_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_disk: bool, expected: float
) -> None:
    noted: list[float] = []
    monkeypatch.setattr(sharded_checkpoints, "note_save", lambda *, rescale_seconds: noted.append(rescale_seconds))
    clock, sizes = Clock(), list[int]()

    def rescales_by_disk(size: int) -> bool:
        sizes.append(size)
        return by_disk

    def state() -> dict[str, Any]:
        clock.now += 2.0
        return {"weight": torch.zeros(1000)}

    checkpoints = ShardedCheckpoints(tmp_path, 30.0, clock, rescales_by_disk=rescales_by_disk)
    checkpoints.save(1, state, dict)
    checkpoints.wait()
    assert (noted, sizes) == ([expected], [4000])


@pytest.mark.usefixtures("group")
def test_costs_are_the_size_and_the_times_of_saves_and_of_the_load(tmp_path: Path) -> None:
    clock = Clock()
    checkpoints = ShardedCheckpoints(tmp_path, 30.0, clock)

    def after(seconds: float) -> Callable[[], dict[str, Any]]:
        def state() -> dict[str, Any]:
            clock.now += seconds
            return {"weight": torch.zeros(1000)}

        return state

    assert checkpoints.costs() == {}
    checkpoints.save(1, after(2.0), dict)
    checkpoints.wait()
    checkpoints.save(2, after(4.0), dict, last=True)
    checkpoints.wait()
    newest = checkpoints.newest()
    assert newest is not None
    size = sum(path.stat().st_size for path in newest.iterdir())
    expected = {"checkpoint_loop_seconds": 3.0, "checkpoint_save_seconds": 3.0, "checkpoint_bytes": size}
    assert checkpoints.costs() == expected
    again = ShardedCheckpoints(tmp_path, 30.0)
    again.load_shards(newest, {"weight": torch.zeros(1000)})
    assert again.costs().keys() == {"checkpoint_load_seconds"}


def test_one_worker_without_memory_writes_its_part_itself_and_there_are_no_copies(tmp_path: Path) -> None:
    script = Path(__file__).with_name("sharded_saver.py")
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**common, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=120)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], said
    finally:
        for worker in workers:
            worker.kill()
    assert "1: saved at once: True" in said[1]
    assert "written in the training loop" not in said[0]
    assert said[1].count("does not fit in memory") == 1
    for text in said:
        assert text.count("no more copies on neighbours: MemoryError: a node's copies take 0.0 MB") == 1
