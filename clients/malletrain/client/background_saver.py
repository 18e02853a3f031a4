"""Writes checkpoints in a background thread, so that the training loop does not wait. Standard library only."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from malletrain.client import note_save
from malletrain.client.checkpoints import Checkpoints, UnfinishedCheckpoint
from malletrain.client.checksum import ChecksumWriter
from malletrain.client.warn_once import WarnOnce, describe


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the training's state at one moment, which is not changed any more.

    Attributes:
        samples: The job's sample counter.
        write: Writes the copy; called in a background thread.
        release: Called when the copy is not needed any more, in any thread.
    """

    samples: int
    write: Callable[[ChecksumWriter], None]
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class SaveStatistics:
    """What has been saved so far.

    Attributes:
        count: Checkpoints that this process has written to disk.
        seconds: Total time that they took in the background.
        last_seconds: Time that the last one took.
        last_bytes: Size of the last one.
        last_samples: Sample counter of the last one; -1 before the first.
    """

    count: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0
    last_bytes: int = 0
    last_samples: int = -1


class BackgroundSaver:
    """Writes one snapshot at a time in a thread. If several wait, only the newest is written.

    The thread exists while there is something to write, and the interpreter waits for it at exit. `os.fork` waits while
    a snapshot is serialised, so that a forked data loader does not inherit a locked lock.

    Attributes:
        written: What has been saved so far.
    """

    def __init__(
        self, checkpoints: Checkpoints, warnings: WarnOnce, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """No thread is started before the first snapshot.

        Args:
            checkpoints: Where the snapshots are written.
            warnings: Prints what goes wrong.
            clock: Monotonic clock in seconds.
        """
        self._checkpoints = checkpoints
        self._warnings = warnings
        self._clock = clock
        self.written = SaveStatistics()
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
                self._unfinished = self._checkpoints.fill(snapshot.samples, snapshot.write)
            # Only system calls from here on. They may take long, and a fork does not disturb them.
            size = self._checkpoints.store(snapshot.samples, self._unfinished)
        except Exception as error:  # noqa: BLE001 - a disk or a user's object may raise anything; the training continues
            with self._no_fork:
                self._warnings.warn(
                    f"checkpoint {type(error).__name__}",
                    f"the checkpoint at {snapshot.samples} samples can't be written, the ones before stay "
                    f"({describe(error)})",
                )
            note_save(error)
            return
        finally:
            self._unfinished = None
            snapshot.release()
        note_save()
        took = self._clock() - started
        self.written = SaveStatistics(self.written.count + 1, self.written.seconds + took, took, size, snapshot.samples)

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
