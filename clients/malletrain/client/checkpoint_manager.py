"""The checkpoints of a training with torch: when one is due, what it costs, saving and loading."""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.client import note_save, phase
from malletrain.client.available_memory import available_memory, fits_in_memory, no_copy
from malletrain.client.checkpoints import CheckpointRetention, Checkpoints, SaveRate, UnfinishedCheckpoint
from malletrain.client.checksum import ChecksumWriter
from malletrain.client.disk_room import DiskRoom
from malletrain.client.phases import SAVE
from malletrain.client.snapshots import (
    SnapshotMemoryPool,
    read_snapshot,
    snapshot_of,
    state_as_it_is,
    tensor_bytes,
    writer_of,
)
from malletrain.client.warn_once import WarnOnce, describe
from malletrain.common.stage_out import StageOutTerms

_BROKEN = (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError)
_NEEDED = frozenset({"model", "optimizer", "samples"})
_MAX_IN_LOOP = 0.05
"""Largest share of the time that snapshots may take in the training loop, besides those that the interval demands.

Checkpoints that are written in the loop never take more, whatever the interval.
"""
_MAX_IN_BACKGROUND = 0.2
"""Largest share of the time that they may take in the background."""
_PRINT_SECONDS = 600.0


class CheckpointManager:
    """Takes snapshots of a training and has them written to disk.

    Attributes:
        folder: Folder of the checkpoints; None: there are none.
        loop_seconds: Total time that snapshots took in the training loop.
        commit_seconds: Total time that commits in memory took in the training loop.
        commits: Number of commits in memory.
        load_seconds: How long reading the checkpoint took from which the training goes on; 0: there was none.
    """

    def __init__(
        self,
        folder: Path | None,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        retention: CheckpointRetention | None = None,
        seconds_left: Callable[[], float | None] = lambda: None,
        memory: Callable[[], int | None] = available_memory,
        rescales_by_disk: Callable[[int], bool] = lambda _size: False,
    ) -> None:
        """Nothing is written before the first `save`.

        Args:
            folder: Folder of the checkpoints; None: there are none.
            interval_seconds: Longest time between two checkpoints.
            clock: Monotonic clock in seconds.
            retention: Which checkpoints are kept; None: the newest two.
            seconds_left: Returns how long this process has at most until it ends; None: as long as it takes.
            memory: Returns the bytes of memory that are available; None: not known.
            rescales_by_disk: Returns whether a state of so many bytes is saved and read again at a change of scale.
        """
        self.folder = folder
        self._warnings = WarnOnce()
        self._interval = interval_seconds
        self._clock = clock
        self._seconds_left = seconds_left
        self._available = memory
        self._checkpoints = Checkpoints(folder, retention, DiskRoom(self._warnings)) if folder else None
        self._rescales_by_disk = rescales_by_disk
        self._saver = (
            BackgroundSaver(self._checkpoints, self._warnings, clock, self._note_saved) if self._checkpoints else None
        )
        self._memory = SnapshotMemoryPool()
        self._saved_at, self._last_loop_seconds, self._direct_seconds = clock(), 0.0, 0.0
        self._printed_at: float | None = None
        self._loaded_samples = self._snapshot_samples = self._given_up_samples = -1
        self._snapshots = self.commits = 0
        self.loop_seconds = self.commit_seconds = self.load_seconds = 0.0

    def load(self) -> dict[str, Any] | None:
        """Load the newest checkpoint that can be read; None if there is none."""
        if self._checkpoints is None:
            return None
        began = self._clock()
        content = self._checkpoints.load(lambda path, verified: read_snapshot(path, _NEEDED, verified), _BROKEN)
        if content is not None:
            self.load_seconds = self._clock() - began
        return content

    def resumed(self, samples: int) -> None:
        """Note that the training continues from the checkpoint at a sample counter."""
        self._loaded_samples = samples

    def newest_samples(self) -> int:
        """Sample counter of the newest checkpoint; -1 if there is none."""
        return -1 if self._checkpoints is None else self._checkpoints.newest_samples()

    def hasten(self) -> None:
        """Have the next checkpoint due at once: the state is in memory only."""
        self._saved_at = -math.inf

    def is_saved(self, samples: int) -> bool:
        """Whether the state at a sample counter is on disk; True if there are no checkpoints."""
        return self._saver is None or samples in (self._loaded_samples, self._saver.written.last_samples)

    def save(self, samples: int, content: Callable[[], Mapping[str, Any]], *, last: bool = False) -> None:
        """Take a snapshot, which is written in the background; or write the state itself, where nothing may be copied.

        Never raises: what goes wrong is printed on stderr, each kind once.

        Args:
            samples: The job's sample counter.
            content: Returns the state. It is copied, or written, before this returns.
            last: Nothing is trained any more: the state is written without a copy, if there is time for it.
        """
        if self._saver is None:
            return
        with phase(SAVE):
            self._save(self._saver, samples, content, last)

    def _save(self, saver: BackgroundSaver, samples: int, content: Callable[[], Mapping[str, Any]], last: bool) -> None:
        if last:
            # It may be this state, and counts if there is no time for another one.
            saver.wait()
            if self.is_saved(samples):
                return
        started = self._clock()
        direct = last
        try:
            training_state = content()
            size = tensor_bytes(training_state)
            self._snapshot_samples = samples
            if last and (why := saver.rate.too_slow(size, self._seconds_left())):
                self._given_up_samples = samples
                print(f"malletrain: no checkpoint at {samples} samples, the last one counts: {why}", file=sys.stderr)
                return
            direct = last or not self._may_copy(size)
            if direct:
                state = state_as_it_is(training_state, "checkpoint")
                saver.save_now(Snapshot(samples, writer_of(state), _nothing, size, started))
            else:
                memory = self._memory.acquire()
                copied = snapshot_of(training_state, "checkpoint", memory)
                saver.submit(Snapshot(samples, writer_of(copied), memory.release, size, started))
        except Exception as error:  # noqa: BLE001 - memory may be short, or a user's object raise anything
            self._warnings.warn(
                f"snapshot {type(error).__name__}", f"no checkpoint at {samples} samples: {describe(error)}"
            )
            note_save(error)
        self._saved_at = self._clock()
        self._last_loop_seconds = self._saved_at - started
        self._direct_seconds = self._last_loop_seconds if direct else 0.0
        self.loop_seconds += self._last_loop_seconds
        self._snapshots += 1

    def _note_saved(self, size: int, seconds: float) -> None:
        note_save(rescale_seconds=seconds + self.load_seconds if self._rescales_by_disk(size) else 0.0)

    def _may_copy(self, size: int) -> bool:
        """Whether there is memory for a copy; said once if there is not."""
        # What the last copy had is used again.
        needed, available = max(0, size - self._memory.spare_bytes), self._available()
        if fits_in_memory(needed, available):
            return True
        self._warnings.warn("no copy", no_copy(size, available or 0, _MAX_IN_LOOP))
        return False

    def save_and_wait(self, samples: int, content: Callable[[], Mapping[str, Any]]) -> bool:
        """Make sure that a state is on disk, where there is time for it; returns whether it is. Nothing is copied.

        Args:
            samples: The job's sample counter.
            content: Returns the state. It is not called if the state is on disk or being written.
        """
        if self._snapshot_samples == samples:
            self.wait()
        if not self.is_saved(samples) and samples != self._given_up_samples:
            self.save(samples, content, last=True)
        return self.is_saved(samples)

    def is_better_staged_out(self, size: int, terms: StageOutTerms) -> bool:
        """Whether the last state had better be left to the node's agent than saved here.

        Args:
            size: Bytes of its tensors, which count before the first save.
            terms: What the agent offers.
        """
        if self._saver is None:
            return False
        size = self._saver.written.last_bytes or size
        if size > terms.max_bytes:
            return False
        expected, left = self._saver.rate.assumed_seconds(size), self._seconds_left()
        if self._saver.busy and left is not None:
            left -= expected  # a save waits for the one before
        return terms.is_better(expected, left)

    def wait(self) -> None:
        """Wait until the last snapshot is on disk."""
        if self._saver is not None:
            with phase(SAVE):
                self._saver.wait()

    def is_due(self, committing: bool) -> bool:
        """Whether to save now: the interval is over, or there is a commit and a checkpoint costs little.

        Args:
            committing: Whether a commit in memory is about to be made.
        """
        if self._saver is None or self._saver.busy:
            return False
        self._print_costs()
        since = self._clock() - self._saved_at
        if self._direct_seconds > _MAX_IN_LOOP * since:
            return False
        if since >= self._interval:
            return True
        return (
            committing
            and self._last_loop_seconds <= _MAX_IN_LOOP * since
            and self._saver.written.last_seconds <= _MAX_IN_BACKGROUND * since
        )

    def committed(self, seconds: float) -> None:
        """Count a commit in memory that took a number of seconds."""
        self.commits += 1
        self.commit_seconds += seconds

    def costs(self) -> dict[str, float]:
        """What commits and checkpoints cost this process, by name.

        Means in seconds: commits in memory, checkpoints in the loop, writing them, and both together until they are on
        disk. Besides, the newest one's size in bytes, and how long loading took in seconds.
        """
        costs: dict[str, float] = {}
        if self.commits:
            costs["commit_seconds"] = self.commit_seconds / self.commits
        if self._saver is not None and self._saver.written.count:
            written = self._saver.written
            costs["checkpoint_loop_seconds"] = self.loop_seconds / self._snapshots
            costs["checkpoint_background_seconds"] = written.seconds / written.count
            costs["checkpoint_save_seconds"] = written.until_on_disk_seconds / written.count
            costs["checkpoint_bytes"] = written.last_bytes
        if self.load_seconds:
            costs["checkpoint_load_seconds"] = self.load_seconds
        return {name: round(value, 6) for name, value in costs.items()}

    def _print_costs(self) -> None:
        """Print the costs after the first checkpoint and every ten minutes."""
        now = self._clock()
        costs = self.costs()
        if "checkpoint_loop_seconds" not in costs or self._saver is None:
            return
        if self._printed_at is not None and now - self._printed_at < _PRINT_SECONDS:
            return
        self._printed_at = now
        loop, background = costs["checkpoint_loop_seconds"], costs["checkpoint_background_seconds"]
        size = self._saver.written.last_bytes / 1e6
        print(
            f"malletrain: a checkpoint ({size:.1f} MB) takes {loop:.3f} s of the training"
            f" and {background:.3f} s in the background, a commit in memory {costs.get('commit_seconds', 0.0):.3f} s",
            file=sys.stderr,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The training's state at one moment, which is not changed any more while it is written.

    Attributes:
        samples: The job's sample counter.
        write: Writes it; of a copy, called in a background thread.
        release: Called when it is not needed any more, in any thread.
        size: Bytes of its tensors.
        began: When the save began, in seconds of the saver's clock.
    """

    samples: int
    write: Callable[[ChecksumWriter], None]
    release: Callable[[], None]
    size: int = 0
    began: float = 0.0


def _nothing() -> None:
    """The state that is written belongs to the training."""


@dataclass(frozen=True, slots=True)
class SaveStatistics:
    """What has been saved so far.

    Attributes:
        count: Checkpoints that this process has written to disk.
        seconds: Total time that writing them took, usually in the background.
        last_seconds: Time that writing the last one took.
        last_bytes: Size of the last one.
        last_samples: Sample counter of the last one; -1 before the first.
        until_on_disk_seconds: Total time from the beginning of a save until it was on disk, copies included.
    """

    count: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0
    last_bytes: int = 0
    last_samples: int = -1
    until_on_disk_seconds: float = 0.0

    def after(self, snapshot: Snapshot, size: int, began: float, now: float) -> SaveStatistics:
        """The figures after another checkpoint, whose writing has begun and ended at two times."""
        return SaveStatistics(
            self.count + 1,
            self.seconds + now - began,
            now - began,
            size,
            snapshot.samples,
            self.until_on_disk_seconds + now - snapshot.began,
        )


class BackgroundSaver:
    """Writes one snapshot at a time in a thread. If several wait, only the newest is written.

    The thread exists while there is something to write, and the interpreter waits for it at exit. `os.fork` waits while
    a snapshot is serialised, so that a forked data loader does not inherit a locked lock.

    Attributes:
        written: What has been saved so far.
        rate: How fast that was.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        warnings: WarnOnce,
        clock: Callable[[], float] = time.monotonic,
        note_saved: Callable[[int, float], None] = lambda _size, _seconds: note_save(),
    ) -> None:
        """No thread is started before the first snapshot.

        Args:
            clock: Monotonic clock in seconds.
            note_saved: Called with the bytes of a state that has been written, and how long that takes in seconds, as
                the last saves did.
        """
        self._checkpoints = checkpoints
        self._warnings = warnings
        self._clock = clock
        self._note_saved = note_saved
        self.written = SaveStatistics()
        self.rate = SaveRate()
        self._overhead = 0
        self._failed = ""
        self._no_fork = threading.Lock()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: Snapshot | None = None
        self._unfinished: UnfinishedCheckpoint | None = None
        reference = weakref.ref(self)
        # A hook can't be removed: it must not keep the saver alive.
        os.register_at_fork(
            before=lambda: _call(reference, BackgroundSaver._before_fork),
            after_in_parent=lambda: _call(reference, BackgroundSaver._after_fork_in_parent),
            after_in_child=lambda: _call(reference, BackgroundSaver._after_fork_in_child),
        )

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written or waits."""
        return self._thread is not None

    def submit(self, snapshot: Snapshot) -> None:
        """Write a snapshot in the background. It replaces one that still waits."""
        with self._changed:
            if self._waiting is not None:
                self._waiting.release()
            self._waiting = snapshot
            if self._thread is not None:
                return
            # Not a daemon thread: the interpreter waits for it at exit.
            self._thread = threading.Thread(target=self._work, name="malletrain-checkpoint", daemon=False)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread, self._waiting = None, None
                self._warnings.warn("checkpoint thread", f"checkpoints are written in the loop: {describe(error)}")
                self._save(snapshot)

    def save_now(self, snapshot: Snapshot) -> None:
        """Write a snapshot in this thread, after those that are being written."""
        self.wait()
        self._save(snapshot)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all snapshots are written or have failed.

        Args:
            seconds: Longest time to wait; None: no limit.

        Returns:
            Whether they are.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def _work(self) -> None:
        try:
            while self._save_next():
                pass
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _save_next(self) -> bool:
        with self._changed:
            snapshot, self._waiting = self._waiting, None
            if snapshot is None:
                # Under the lock that protects `_waiting`: a snapshot submitted from now on starts another thread.
                self._thread = None
                return False
        self._save(snapshot)
        return True

    def _save(self, snapshot: Snapshot) -> None:
        started = self._clock()
        try:
            with self._no_fork:
                needed = snapshot.size + self._overhead
                self._unfinished = self._checkpoints.fill(snapshot.samples, snapshot.write, needed)
            # Only system calls from here on. They may take long, and a fork does not disturb them.
            size = self._checkpoints.store(snapshot.samples, self._unfinished)
        except Exception as error:  # noqa: BLE001 - a disk or a user's object may raise anything; the training continues
            with self._no_fork:
                self._failed = f"checkpoint {type(error).__name__}"
                self._warnings.warn(
                    self._failed,
                    f"the checkpoint at {snapshot.samples} samples can't be written, the ones before stay "
                    f"({describe(error)})",
                )
            note_save(error)
            return
        finally:
            self._unfinished = None
            snapshot.release()
        now = self._clock()
        self.rate.note(size, now - started)
        self._note_saved(snapshot.size, self.rate.expected_seconds(size) or 0.0)
        self._overhead = max(0, size - snapshot.size)
        self._warnings.forget(self._failed)
        self.written = self.written.after(snapshot, size, started, now)

    def _before_fork(self) -> None:
        self._no_fork.acquire()

    def _after_fork_in_parent(self) -> None:
        self._no_fork.release()

    def _after_fork_in_child(self) -> None:
        """Forget the thread, which does not exist in a child; the parent finishes its work."""
        if self._unfinished is not None:
            self._unfinished.close()
        self._no_fork = threading.Lock()
        self._changed = threading.Condition()
        self._thread = self._waiting = self._unfinished = None


def _call(reference: weakref.ref[BackgroundSaver], method: Callable[[BackgroundSaver], None]) -> None:
    saver = reference()
    if saver is not None:
        method(saver)
