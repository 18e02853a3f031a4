"""Checkpoints of a training whose weights are divided among the workers: each worker writes and reads its own part.

A checkpoint is a folder `samples-N.shards` in the folder of checkpoints, written by torch.distributed.checkpoint, with
a file `training.pt` beside the shards for what is not divided. It is complete once the coordinator has written
`.metadata`, which is the last file of all. After a loss, survivors write the other form, `samples-N.parts`
(`malletrain.client.shard_parts`).
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

from malletrain.client import note_save, phase
from malletrain.client.phases import SAVE
from malletrain.client.shard_parts import PartsReader, Shards, complete_parts, read_plain
from malletrain.client.snapshots import snapshot_of
from malletrain.client.warn_once import WarnOnce, describe

_KEPT = 2
_NAME = re.compile(r"samples-(\d+)\.(shards|parts)")
_METADATA = ".metadata"
_PLAIN = "training.pt"
_PARTS = ".parts"
_MAX_OF_THE_TIME = 0.05
"""Largest share of the time that copies may take in the loop, besides those that the interval demands."""


class ShardedCheckpoints:
    """The checkpoints of one job. All workers call `save`, `wait` and `load` together."""

    def __init__(
        self, folder: Path | None, interval_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is written before the first `save`.

        Args:
            folder: Folder of the checkpoints; None: there are none.
            interval_seconds: Longest time between two checkpoints.
            clock: Monotonic clock in seconds.
        """
        self._folder = folder
        self._interval = interval_seconds
        self._clock = clock
        self._warnings = WarnOnce()
        self._group: dist.ProcessGroup | None = None
        self._writing: tuple[int, Future[Any]] | None = None
        self._saved = self._loaded = -1
        self._plain_error: OSError | RuntimeError | None = None
        self._saved_at, self._last_seconds = clock(), 0.0
        self._saves, self.loop_seconds = 0, 0.0

    def newest(self) -> Path | None:
        """The newest complete checkpoint; None if there is none."""
        return max((path for path in self._folders() if _is_complete(path)), key=_samples_of, default=None)

    def load_plain(self, path: Path) -> dict[str, Any]:
        """What a checkpoint has that is not divided.

        Raises:
            OSError: it can't be read.
        """
        if path.suffix == _PARTS:
            return read_plain(path)
        content: dict[str, Any] = torch.load(path / _PLAIN, map_location="cpu", weights_only=True)
        return content

    def load_shards(self, path: Path, shards: Shards, planner: LoadPlanner | None = None) -> None:
        """Fill tensors, however they are divided now, with those of a checkpoint.

        Args:
            path: The checkpoint.
            shards: The tensors.
            planner: Says where they lie in the whole; None: they say it themselves.

        Raises:
            RuntimeError: a tensor is missing or has another shape; or a file can't be read.
        """
        reader = PartsReader(path) if path.suffix == _PARTS else dcp.FileSystemReader(path)
        try:
            dcp.load(shards, storage_reader=reader, planner=planner)
        except CheckpointException as error:
            # It is no Exception, and has the errors of all workers, each with its traceback.
            rank, (cause, _) = next(iter(error.failures.items()))
            raise RuntimeError(f"checkpoint {path.name}, rank {rank}: {describe(cause)}") from error
        self._loaded = _samples_of(path)

    def is_saved(self, samples: int) -> bool:
        """Whether the state at a sample counter is on disk; True if there are no checkpoints."""
        self._collect()
        return self._folder is None or samples in (self._saved, self._loaded)

    def is_due(self, committing: bool) -> bool:
        """Whether to save now: the interval is over, or there is a commit and a checkpoint costs little.

        Args:
            committing: Whether a commit is about to be made.
        """
        self._collect()
        if self._folder is None or self._writing is not None:
            return False
        since = self._clock() - self._saved_at
        return since >= self._interval or (committing and self._last_seconds <= _MAX_OF_THE_TIME * since)

    @phase(SAVE)
    def save(
        self,
        samples: int,
        shards: Callable[[], Shards],
        plain: Callable[[], Mapping[str, Any]] | None,
        planner: SavePlanner | None = None,
    ) -> None:
        """Copy this worker's part; it is written in the background. Waits for a checkpoint that is being written.

        Args:
            samples: The job's sample counter.
            shards: Returns what is divided.
            plain: Returns what is not, at the one worker that writes it; None at the others.
            planner: Says where this worker's part lies in the whole; None: the tensors say it themselves.
        """
        if self._folder is None:
            return
        self.wait()
        began = self._clock()
        path = self._folder / f"samples-{samples:015d}.shards"
        if plain is not None:
            self._plain_error = self._save_plain(path, plain)
        # Also after an error: the other workers write their parts together with this one.
        self._writing = samples, self._start(path, shards(), planner)
        self._saved_at = self._clock()
        self._last_seconds = self._saved_at - began
        self.loop_seconds += self._last_seconds
        self._saves += 1

    def _save_plain(self, path: Path, plain: Callable[[], Mapping[str, Any]]) -> OSError | RuntimeError | None:
        """Write what is not divided; the error, if that fails."""
        try:
            shutil.rmtree(path, ignore_errors=True)
            # Another worker's writer may have made it in the meantime.
            path.mkdir(parents=True, exist_ok=True)
            torch.save(snapshot_of(plain(), "checkpoint"), path / _PLAIN)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError where a disk is full
            return error
        return None

    @phase(SAVE)
    def wait(self) -> None:
        """Wait until all workers have written their parts of the last checkpoint. What goes wrong is printed."""
        if self._writing is None:
            return
        samples, future = self._writing
        self._writing = None
        try:
            future.result()
            if self._plain_error is not None:
                raise self._plain_error
        except Exception as error:  # noqa: BLE001 - a disk may be full, another worker lost
            self._warnings.warn(
                f"shards {type(error).__name__}", f"no checkpoint at {samples} samples: {describe(error)}"
            )
            note_save(error)
            return
        note_save()
        self._saved = samples

    def remove_old(self) -> None:
        """Remove all but the newest two, and unfinished ones that are older. One worker calls it."""
        newest = self.newest()
        if newest is None:
            return
        complete = sorted((path for path in self._folders() if _is_complete(path)), key=_samples_of)
        kept = {*complete[-_KEPT:]}
        for path in self._folders():
            if path not in kept and _samples_of(path) < _samples_of(newest):
                shutil.rmtree(path, ignore_errors=True)

    def costs(self) -> dict[str, float]:
        """Mean time in seconds that a checkpoint takes of the training loop."""
        return {"checkpoint_loop_seconds": round(self.loop_seconds / self._saves, 6)} if self._saves else {}

    def _collect(self) -> None:
        """Note a checkpoint that has been finished in the meantime."""
        if self._writing is not None and self._writing[1].done():
            self.wait()

    def _start(self, path: Path, shards: Shards, planner: SavePlanner | None) -> Future[Any]:
        if self._group is None and dist.get_world_size() > 1:
            # Of its own: operations of the training go on meanwhile.
            self._group = dist.new_group(backend="gloo")
        # It returns when torch has copied the tensors to the CPU: no second copy is needed.
        # Told which writer to use, torch does not import others to choose from, here and when it reads.
        writer = dcp.FileSystemWriter(path)
        started = dcp.async_save(shards, storage_writer=writer, planner=planner, process_group=self._group)
        written: Future[Any] = started.upload_completion if isinstance(started, AsyncSaveResponse) else started
        return written

    def _folders(self) -> list[Path]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]


def _is_complete(path: Path) -> bool:
    if path.suffix == _PARTS:
        return bool(complete_parts(path))
    return (path / _METADATA).exists() and (path / _PLAIN).exists()


def samples_in(path: Path | None) -> int:
    """The sample counter of a checkpoint; -1 for None."""
    return _samples_of(path) if path is not None else -1


def _samples_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def say_where(samples: int, seconds: float) -> None:
    """Print from which sample counter a training goes on, and how long loading took."""
    print(f"malletrain: resumed at {samples} samples, loaded in {seconds:.2f} s", file=sys.stderr)
