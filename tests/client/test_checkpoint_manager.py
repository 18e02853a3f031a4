from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
import torch

from malletrain.client import checkpoint_manager
from malletrain.client.checkpoint_manager import CheckpointManager, SaveStatistics
from malletrain.client.checkpoints import CheckpointRetention


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


def test_what_is_under_way_is_not_written_again_at_a_stop(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 30.0)
    state = State(40)
    manager.save(40, state)
    manager.save(40, state, last=True)
    assert manager.is_saved(40)
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


class Clock:
    """A clock that goes on as it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def slow_disk(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float) -> None:
    """The disk takes a number of seconds for a file, and as many for its folder, by the clock."""
    to_disk = os.fsync

    def fsync(fd: int) -> None:
        to_disk(fd)
        clock.now += seconds

    monkeypatch.setattr(os, "fsync", fsync)


def tied_state(samples: int) -> dict[str, Any]:
    """A state with tied weights, a small part of a large tensor, and what is no tensor."""
    weight = torch.arange(12.0).reshape(3, 4)
    large = torch.arange(4096.0)
    return {
        "model": OrderedDict(embedding=weight, head=weight, column=weight[:, 1], part=large[5:9]),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "samples": samples,
        "extra": {"sparse": torch.eye(3).to_sparse(), "number": np.float64(0.5), "rows": (1, "a", None)},
    }


def assert_equal(left: Any, right: Any) -> None:
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for name in left:
            assert_equal(left[name], right[name])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert left == right


def test_written_without_a_copy_it_is_the_same_checkpoint(tmp_path: Path) -> None:
    copying, last = CheckpointManager(tmp_path / "a", 30.0), CheckpointManager(tmp_path / "b", 30.0)
    copying.save(40, lambda: tied_state(40))
    copying.wait()
    assert last.save_and_wait(40, lambda: tied_state(40))
    copied, direct = copying.load(), last.load()
    assert_equal(copied, direct)
    assert direct is not None
    model = direct["model"]
    assert model["embedding"].data_ptr() == model["head"].data_ptr()
    # Of a large tensor only the part is written that belongs to the state.
    assert all(path.stat().st_size < 8192 for path in tmp_path.glob("*/*.pt"))


MEMORY = """
import sys
from pathlib import Path
import torch
from malletrain.client.checkpoint_manager import CheckpointManager
from tests.training.fsdp_memory import growth

manager = CheckpointManager(Path(sys.argv[1]), 30.0)
state = {"model": {str(n): torch.ones(1 << 20) for n in range(16)}, "optimizer": {}, "samples": 0}

def copy():
    manager.save(1, lambda: state)
    manager.wait()

print(growth(lambda: manager.save_and_wait(0, lambda: state))[0], growth(copy)[0])
"""


def test_at_a_stop_no_memory_is_needed_for_a_copy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    last, copied = (int(word) / 2**20 for word in done.stdout.split())
    # The state has 64 MiB.
    assert last < 16
    assert 60 < copied < 80


def test_where_a_copy_does_not_fit_it_is_written_in_the_loop_within_its_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    manager = CheckpointManager(tmp_path, 30.0, clock, memory=lambda: 100_000)

    def slow(samples: int) -> dict[str, Any]:
        clock.now += 20.0  # as the write would
        return {"model": torch.zeros(25_000), "optimizer": {}, "samples": samples}

    manager.save(1, lambda: slow(1))
    # It is on disk at once.
    assert manager.is_saved(1)
    said = "in 5% of its time: a copy of 0.1 MB does not fit in memory (0.1 MB available)"
    assert capsys.readouterr().err.count(said) == 1
    clock.now += 399.0
    assert not manager.is_due(committing=True)
    clock.now += 2.0
    assert manager.is_due(committing=False)
    manager.save(2, lambda: slow(2))
    assert manager.is_saved(2)
    assert said not in capsys.readouterr().err
    # A small one fits, and the interval counts again.
    manager.save(3, State(3))
    manager.wait()
    clock.now += 31.0
    assert manager.is_due(committing=False)


def test_memory_of_the_last_copy_is_used_for_the_next_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    available = [1_000_000]
    manager = CheckpointManager(tmp_path, 30.0, memory=lambda: available[0])
    state = {"model": torch.zeros(25_000), "optimizer": {}, "samples": 1}
    for samples in (1, 2):
        manager.save(samples, lambda: state)
        manager.wait()
        available[0] = 0
    assert "fit in memory" not in capsys.readouterr().err


def test_what_can_not_be_saved_in_time_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, left = Clock(), [1.0]
    slow_disk(monkeypatch, clock, 10.0)
    manager = CheckpointManager(tmp_path, 30.0, clock, seconds_left=lambda: left[0])

    def state(samples: int) -> Callable[[], dict[str, Any]]:
        return lambda: {"model": torch.zeros(250_000), "optimizer": {}, "samples": samples}

    # Nothing is known before the first one: it is tried.
    assert manager.save_and_wait(1, state(1))
    left[0] = 5.0
    assert not manager.save_and_wait(2, state(2))
    again = State(2)
    assert not manager.save_and_wait(2, again)
    assert again.asked == 0
    said = capsys.readouterr().err
    assert said.count("no checkpoint at 2 samples, the last one counts: 1.0 MB take about") == 1
    assert "and 5.0 s are left" in said
    assert [path.name for path in tmp_path.iterdir()] == ["samples-000000000000001.pt"]
    left[0] = 60.0
    assert manager.save_and_wait(3, state(3))


def test_a_full_disk_is_said_again_after_it_had_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = CheckpointManager(tmp_path / "checkpoints", 30.0)
    for _ in range(2):
        (tmp_path / "checkpoints").write_text("in the way")
        for samples in (1, 2):
            assert not manager.save_and_wait(samples, State(samples))
        assert capsys.readouterr().err.count("can't be written") == 1
        (tmp_path / "checkpoints").unlink()
        assert manager.save_and_wait(3, State(3))
        shutil.rmtree(tmp_path / "checkpoints")
        manager.resumed(-1)
        manager._saver.written = SaveStatistics()  # type: ignore[union-attr]


def test_costs_are_the_size_and_the_times_of_saves_and_of_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    slow_disk(monkeypatch, clock, 1.5)
    manager = CheckpointManager(tmp_path, 30.0, clock)

    def state() -> dict[str, Any]:
        clock.now += 2.0
        return {"model": torch.zeros(1000), "optimizer": {}, "samples": 1}

    assert manager.costs() == {}
    manager.save(1, state)
    manager.wait()
    monkeypatch.undo()
    size = (tmp_path / "samples-000000000000001.pt").stat().st_size
    assert size > 4000
    assert manager.costs() == {
        "checkpoint_loop_seconds": 2.0,
        "checkpoint_background_seconds": 3.0,
        "checkpoint_save_seconds": 5.0,
        "checkpoint_bytes": size,
    }
    again = CheckpointManager(tmp_path, 30.0)
    assert again.load() is not None
    assert again.costs().keys() == {"checkpoint_load_seconds"}
    assert again.costs()["checkpoint_load_seconds"] > 0


@pytest.mark.parametrize(("by_disk", "expected"), [(True, 5.0), (False, 0.0)])
def test_what_a_rescale_by_way_of_the_disk_takes_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_disk: bool, expected: float
) -> None:
    clock = Clock()
    slow_disk(monkeypatch, clock, 1.5)
    noted: list[float] = []
    monkeypatch.setattr(checkpoint_manager, "note_save", lambda *, rescale_seconds: noted.append(rescale_seconds))
    manager = CheckpointManager(tmp_path, 30.0, clock, rescales_by_disk=lambda size: by_disk and size == 4000)
    manager.load_seconds = 2.0
    manager.save(1, lambda: {"model": torch.zeros(1000), "optimizer": {}, "samples": 1})
    manager.wait()
    assert noted == [expected]


def test_as_many_are_kept_as_is_said(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 30.0, retention=CheckpointRetention(3))
    for samples in range(5):
        assert manager.save_and_wait(samples, State(samples))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(("option", "value"), [("checkpoints_kept", 0), ("max_checkpoint_bytes", -1)])
def test_trainings_refuse_wrong_figures_by_name(option: str, value: int) -> None:
    from malletrain.client.distributed import ElasticTraining

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=f"{option}: expected .*, got {value}"):
        ElasticTraining(model, optimizer, dataset_size=4, batch_per_worker=1, **{option: value})


def test_it_is_verified_while_it_is_read_and_one_changed_bit_anywhere_leads_to_the_one_before(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 30.0)
    for samples in (1, 2):
        assert manager.save_and_wait(samples, lambda samples=samples: tied_state(samples))
    newest = tmp_path / "samples-000000000000002.pt"
    content = newest.read_bytes()
    assert manager.load()["samples"] == 2  # type: ignore[index]
    for place in range(0, len(content), 151):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        newest.write_bytes(changed)
        loaded = CheckpointManager(tmp_path, 30.0).load()
        assert loaded is not None
        assert loaded["samples"] == 1, place
