"""Saving in the background: the training loop hands over a snapshot and goes on. Standard library only."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from malletrain.client.checkpoints import Checkpoints, Unfinished
from malletrain.client.complaints import Complaints, describe
from malletrain.client.sealing import SealedWriter


def _nothing() -> None:
    """For a snapshot that nobody wants to be told about."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state at one moment, which nobody changes any more.

    Attributes:
        samples: The job's sample counter.
        write: Writes it; called in a thread of its own.
        release: Called when it is not needed any more, in whatever thread.
    """

    samples: int
    write: Callable[[SealedWriter], None]
    release: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Written:
    """What has been saved so far.

    Attributes:
        count: Checkpoints on disk since the start of this process.
        seconds: Time that they took in the background, together.
        last_seconds: Time that the last one took.
        last_bytes: Size of the last one.
        last_samples: The sample counter of the last one; -1 before the first.
    """

    count: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0
    last_bytes: int = 0
    last_samples: int = -1


class BackgroundSaver:
    """Writes snapshots one at a time in a thread of its own; of those that wait, the newest wins.

    The thread lives while there is something to save, and a process that ends in order waits for it. No snapshot is
    serialised while the process forks: `os.fork` waits for it, so that a data loader inherits no half-held lock.
    """

    def __init__(
        self, checkpoints: Checkpoints, complaints: Complaints, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is started before the first snapshot.

        Args:
            checkpoints: Where to.
            complaints: Told what goes wrong; the training goes on.
            clock: Seconds.
        """
        self._checkpoints = checkpoints
        self._complaints = complaints
        self._clock = clock
        self.written = Written()
        self._no_fork = threading.Lock()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: Snapshot | None = None
        self._unfinished: Unfinished | None = None
        itself = weakref.ref(self)
        # A hook can't be taken back: it must not keep the saver alive.
        os.register_at_fork(
            before=lambda: _call(itself, BackgroundSaver._before_fork),
            after_in_parent=lambda: _call(itself, BackgroundSaver._after_fork_in_parent),
            after_in_child=lambda: _call(itself, BackgroundSaver._after_fork_in_child),
        )

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being saved, or waits."""
        return self._thread is not None

    def submit(self, snapshot: Snapshot) -> None:
        """Save a snapshot soon, in place of one that is still waiting."""
        with self._changed:
            if self._waiting is not None:
                self._waiting.release()
            self._waiting = snapshot
            if self._thread is not None:
                return
            # No daemon: at the end of the process it is waited for.
            self._thread = threading.Thread(target=self._work, name="malletrain-checkpoint", daemon=False)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread, self._waiting = None, None
                self._complaints.say("checkpoint thread", f"checkpoints are written in the loop: {describe(error)}")
                self._save(snapshot)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until everything is on disk (or has been complained about); False if it takes longer."""
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
                # Under the same lock as the look: what comes from now on starts another thread.
                self._thread = None
                return False
        self._save(snapshot)
        return True

    def _save(self, snapshot: Snapshot) -> None:
        started = self._clock()
        try:
            with self._no_fork:
                self._unfinished = self._checkpoints.fill(snapshot.samples, snapshot.write)
            # Nothing but system calls from here on: they may take long, and a fork does not disturb them.
            size = self._checkpoints.store(snapshot.samples, self._unfinished)
        except Exception as error:  # noqa: BLE001 - a disk or a user's object may do anything; the training goes on
            with self._no_fork:
                self._complaints.say(
                    f"checkpoint {type(error).__name__}",
                    f"the checkpoint at {snapshot.samples} samples can't be written, the ones before stay "
                    f"({describe(error)})",
                )
            return
        finally:
            self._unfinished = None
            snapshot.release()
        took = self._clock() - started
        self.written = Written(self.written.count + 1, self.written.seconds + took, took, size, snapshot.samples)

    def _before_fork(self) -> None:
        self._no_fork.acquire()

    def _after_fork_in_parent(self) -> None:
        self._no_fork.release()

    def _after_fork_in_child(self) -> None:
        """There is no thread here, and what it was doing is its parent's business."""
        if self._unfinished is not None:
            self._unfinished.close()
        self._no_fork = threading.Lock()
        self._changed = threading.Condition()
        self._thread = self._waiting = self._unfinished = None


def _call(itself: weakref.ref[BackgroundSaver], method: Callable[[BackgroundSaver], None]) -> None:
    saver = itself()
    if saver is not None:
        method(saver)
