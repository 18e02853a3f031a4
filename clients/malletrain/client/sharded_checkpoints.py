"""Checkpoints of a training whose weights are divided among the workers: each worker writes and reads its own part.

A checkpoint is a folder `samples-N.shards` in the folder of checkpoints, written by torch.distributed.checkpoint, with
a file `training.pt` beside the shards for what is not divided. It is complete once the coordinator has written
`.metadata`, which is the last file of all. After a loss, survivors write the other form, `samples-N.parts`
(`malletrain.client.shard_parts`).
"""

from __future__ import annotations

import math
import os
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
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

from malletrain.client import note_save, phase
from malletrain.client.available_memory import available_memory, fits_in_memory, no_copy
from malletrain.client.checkpoints import CheckpointRetention, SaveRate
from malletrain.client.disk_room import DiskRoom, size_of
from malletrain.client.phases import SAVE
from malletrain.client.shard_parts import PartsReader, Shards, complete_parts, load_from, read_plain
from malletrain.client.snapshots import snapshot_of, tensor_bytes
from malletrain.client.warn_once import WarnOnce, describe
from malletrain.common.stage_out import StageOutTerms

_NAME = re.compile(r"samples-(\d+)\.(shards|parts)")
_METADATA = ".metadata"
_PLAIN = "training.pt"
_PARTS = ".parts"
_MAX_OF_THE_TIME = 0.05
"""Largest share of the time that copies may take in the loop, besides those that the interval demands.

Checkpoints that are written in the loop never take more, whatever the interval.
"""


class ShardedCheckpoints:
    """The checkpoints of one job. All workers call `save`, `wait` and `load` together."""

    def __init__(
        self,
        folder: Path | None,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        retention: CheckpointRetention | None = None,
        seconds_left: Callable[[], float | None] = lambda: None,
        memory: Callable[[], int | None] = available_memory,
        room: DiskRoom | None = None,
        rescales_by_disk: Callable[[int], bool] = lambda _size: False,
    ) -> None:
        """Nothing is written before the first `save`.

        Args:
            folder: Folder of the checkpoints; None: there are none.
            interval_seconds: Longest time between two checkpoints.
            clock: Monotonic clock in seconds.
            retention: Which checkpoints are kept; None: the newest two.
            seconds_left: Returns how long this process has at most until it ends; None: as long as it takes.
            memory: Returns the bytes of this node's memory that are available; None: not known.
            room: The free space where the checkpoints are; None: that of the file system.
            rescales_by_disk: Returns whether a worker's part of so many bytes is saved and read again at a change of
                scale.
        """
        self._folder = folder
        self._interval = interval_seconds
        self._clock = clock
        self._retention = retention or CheckpointRetention()
        self._seconds_left = seconds_left
        self._available = memory
        self._warnings = WarnOnce()
        self._room = room or DiskRoom(self._warnings)
        self._rate = SaveRate()
        self._rescales_by_disk = rescales_by_disk
        self._part_bytes = 0
        self._group: dist.ProcessGroup | None = None
        self._writing: _Writing | None = None
        self._saved = self._loaded = -1
        self._plain_error: OSError | RuntimeError | None = None
        self._failed = ""
        self._saved_at, self._last_seconds, self._direct_seconds = clock(), 0.0, 0.0
        self._saves, self.loop_seconds, self.load_seconds = 0, 0.0, 0.0
        self._written, self._written_seconds, self._size = 0, 0.0, 0

    def newest(self) -> Path | None:
        """The newest complete checkpoint; None if there is none."""
        return next(iter(self._complete()), None)

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
        began = self._clock()
        reader = PartsReader(path) if path.suffix == _PARTS else dcp.FileSystemReader(path)
        load_from(reader, shards, f"checkpoint {path.name}", planner)
        self._loaded = _samples_of(path)
        self.load_seconds = self._clock() - began

    def hasten(self) -> None:
        """Have the next checkpoint due at once: the state is in memory only."""
        self._saved_at = -math.inf

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
        if self._direct_seconds > _MAX_OF_THE_TIME * since:
            return False
        return since >= self._interval or (committing and self._last_seconds <= _MAX_OF_THE_TIME * since)

    def may_begin(self, samples: int, whole_bytes: Callable[[], int], *, last: bool) -> bool:
        """Whether there is time and room for another checkpoint. One worker asks, before all of them call `save`.

        Older ones are removed where it does not fit otherwise. What is in the way is printed, and a full disk noted.

        Args:
            samples: The job's sample counter.
            whole_bytes: Returns the bytes of a checkpoint with all its parts; asked while the size of none is known.
            last: Nothing is trained any more: there must be time.
        """
        if self._folder is None:
            return True
        # It needs room, and counts if there is no time for another one. `save` would wait for it as well.
        self.wait()
        newest = self.newest()
        size = (size_of(newest) if newest is not None else 0) or whole_bytes()
        if last and (why := self._rate.too_slow(size, self._seconds_left())):
            print(f"malletrain: no checkpoint at {samples} samples, the last one counts: {why}", file=sys.stderr)
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._room.make(self._folder, size, self._complete()[1:])
        except OSError as error:
            self._note_failure(samples, error)
            self._saved_at = self._clock()
            return False
        return True

    def is_better_staged_out(self, whole_bytes: Callable[[], int], terms: StageOutTerms) -> bool:
        """Whether the last state had better be left to the nodes' agents than saved by the workers. One worker asks.

        Args:
            whole_bytes: As for `may_begin`.
            terms: What its agent offers.
        """
        size, left = self._size or whole_bytes(), self._seconds_left()
        expected = self._rate.assumed_seconds(size)
        if self._writing is not None and left is not None:
            left -= expected  # a save waits for the one before
        return terms.is_better(expected, left)

    @phase(SAVE)
    def save(
        self,
        samples: int,
        shards: Callable[[], Shards],
        plain: Callable[[], Mapping[str, Any]] | None,
        planner: SavePlanner | None = None,
        *,
        last: bool = False,
    ) -> None:
        """Write this worker's part: a copy of it in the background, or itself where nothing may be copied.

        Waits for a checkpoint that is being written. Workers that copy and others that do not can save together.

        Args:
            samples: The job's sample counter.
            shards: Returns what is divided.
            plain: Returns what is not, at the one worker that writes it; None at the others.
            planner: Says where this worker's part lies in the whole; None: the tensors say it themselves.
            last: Nothing is trained any more: this worker's part is written without a copy.
        """
        if self._folder is None:
            return
        self.wait()
        began = self._clock()
        path = self._folder / f"samples-{samples:015d}.shards"
        if plain is not None:
            self._plain_error = self._save_plain(path, plain)
        # Also after an error: the other workers write their parts together with this one.
        part = shards()
        self._part_bytes = tensor_bytes(part, own=True)
        direct = last or not self._may_copy(self._part_bytes)
        self._writing = _Writing(samples, path, plain is not None, began, self._clock)
        self._writing.follow((self._write_now if direct else self._start)(path, part, planner))
        self._saved_at = self._clock()
        self._last_seconds = self._saved_at - began
        self._direct_seconds = self._last_seconds if direct else 0.0
        self.loop_seconds += self._last_seconds
        self._saves += 1

    def _may_copy(self, size: int) -> bool:
        """Whether this node has memory for copies of its workers' parts; said once if it has not."""
        needed, available = size * int(os.environ.get("LOCAL_WORLD_SIZE", "1")), self._available()
        if fits_in_memory(needed, available):
            return True
        self._warnings.warn("no copy", no_copy(needed, available or 0, _MAX_OF_THE_TIME))
        return False

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
        writing, self._writing = self._writing, None
        try:
            seconds = writing.result()
            if self._plain_error is not None:
                raise self._plain_error
        except Exception as error:  # noqa: BLE001 - a disk may be full, another worker lost
            self._note_failure(writing.samples, error)
            return
        if writing.by_coordinator:
            self._note_written(writing.path, seconds)
        by_disk = self._rescales_by_disk(self._part_bytes)
        expected = (self._rate.expected_seconds(self._size) or 0.0) + self.load_seconds
        note_save(rescale_seconds=expected if by_disk else 0.0)
        self._warnings.forget(self._failed)
        self._saved = writing.samples

    def _note_failure(self, samples: int, error: Exception) -> None:
        self._failed = f"shards {type(error).__name__}"
        self._warnings.warn(self._failed, f"no checkpoint at {samples} samples: {describe(error)}")
        note_save(error)

    def _note_written(self, path: Path, seconds: float) -> None:
        """Note what a checkpoint has taken."""
        self._size = size_of(path)
        self._rate.note(self._size, seconds)
        self._written += 1
        self._written_seconds += seconds
        self._room.look(path.parent, self._size)

    def remove_old(self) -> None:
        """Remove those that are not kept, and unfinished ones that are older than the newest. One worker calls it."""
        complete = self._complete()
        if not complete:
            return
        kept = {*complete[: self._retention.count_kept(size_of(path) for path in complete)]}
        for path in self._folders():
            if path not in kept and _samples_of(path) < _samples_of(complete[0]):
                shutil.rmtree(path, ignore_errors=True)

    def costs(self) -> dict[str, float]:
        """What checkpoints cost, by name.

        Means in seconds: how long a checkpoint takes of the training loop, and until it is on disk. Besides, the size
        of the newest one in bytes, and how long loading took in seconds.
        """
        costs: dict[str, float] = {}
        if self._saves:
            costs["checkpoint_loop_seconds"] = self.loop_seconds / self._saves
        if self._written:
            costs["checkpoint_save_seconds"] = self._written_seconds / self._written
            costs["checkpoint_bytes"] = self._size
        if self.load_seconds:
            costs["checkpoint_load_seconds"] = self.load_seconds
        return {name: round(value, 6) for name, value in costs.items()}

    def _collect(self) -> None:
        """Note a checkpoint that has been finished in the meantime."""
        if self._writing is not None and self._writing.done:
            self.wait()

    def _write_now(self, path: Path, shards: Shards, planner: SavePlanner | None) -> Future[Any]:
        written: Future[Any] = Future()
        try:
            writer = dcp.FileSystemWriter(path)
            dcp.save(shards, storage_writer=writer, planner=planner, process_group=self._own_group())
            written.set_result(None)
        except Exception as error:  # noqa: BLE001 - as in the background; `wait` says it
            written.set_exception(error)
        return written

    def _own_group(self) -> dist.ProcessGroup | None:
        """A group of the checkpoints' own: operations of the training go on meanwhile."""
        if self._group is None and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")
        return self._group

    def _start(self, path: Path, shards: Shards, planner: SavePlanner | None) -> Future[Any]:
        # It returns when torch has copied the tensors to the CPU: no second copy is needed.
        # Told which writer to use, torch does not import others to choose from, here and when it reads.
        writer = dcp.FileSystemWriter(path)
        started = dcp.async_save(shards, storage_writer=writer, planner=planner, process_group=self._own_group())
        written: Future[Any] = started.upload_completion if isinstance(started, AsyncSaveResponse) else started
        return written

    def _complete(self) -> list[Path]:
        """The complete checkpoints, the newest first."""
        return sorted((path for path in self._folders() if _is_complete(path)), key=_samples_of, reverse=True)

    def _folders(self) -> list[Path]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]


class _Writing:
    """A checkpoint that is being written.

    Attributes:
        samples: The job's sample counter.
        path: Its folder.
        by_coordinator: Whether this worker writes what is not divided.
    """

    def __init__(
        self, samples: int, path: Path, by_coordinator: bool, began: float, clock: Callable[[], float]
    ) -> None:
        """Nothing is known of its end yet; `began` is in seconds of the clock."""
        self.samples = samples
        self.path = path
        self.by_coordinator = by_coordinator
        self._began = began
        self._clock = clock
        self._future: Future[Any] = Future()
        self._ended: float | None = None

    def follow(self, future: Future[Any]) -> None:
        """This future is done when it is written."""
        self._future = future
        future.add_done_callback(self._end)

    def _end(self, future: Future[Any]) -> None:
        del future
        self._ended = self._clock()

    @property
    def done(self) -> bool:
        """Whether it is written, or has failed."""
        return self._future.done()

    def result(self) -> float:
        """Wait until it is written; how long that took, in seconds.

        Raises:
            Exception: it can't be written; whatever the writer has raised.
        """
        self._future.result()
        # The future's waiters may be told before `_end` is called.
        return (self._clock() if self._ended is None else self._ended) - self._began


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
