"""The checkpoints of a training with torch: when one is due, what it costs, saving and loading."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from malletrain.client import note_save, phase
from malletrain.client.background_saver import BackgroundSaver, Snapshot
from malletrain.client.checkpoints import Checkpoints
from malletrain.client.phases import SAVE
from malletrain.client.snapshots import SnapshotMemoryPool, read_snapshot, snapshot_of, writer_of
from malletrain.client.warn_once import WarnOnce, describe

_BROKEN = (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError)
_NEEDED = frozenset({"model", "optimizer", "samples"})
_MAX_IN_LOOP = 0.05
"""Largest share of the time that snapshots may take in the training loop, besides those that the interval demands."""
_MAX_IN_BACKGROUND = 0.2
"""Largest share of the time that they may take in the background."""
_PRINT_SECONDS = 600.0


class CheckpointManager:
    """Takes snapshots of a training and has them written to disk.

    Attributes:
        loop_seconds: Total time that snapshots took in the training loop.
        commit_seconds: Total time that commits in memory took in the training loop.
        commits: Number of commits in memory.
    """

    def __init__(
        self, folder: Path | None, interval_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is written before the first `save`.

        Args:
            folder: Folder of the checkpoints; None: there are none.
            interval_seconds: Longest time between two checkpoints.
            clock: Monotonic clock in seconds.
        """
        self._warnings = WarnOnce()
        self._interval = interval_seconds
        self._clock = clock
        self._checkpoints = Checkpoints(folder) if folder else None
        self._saver = BackgroundSaver(self._checkpoints, self._warnings, clock) if self._checkpoints else None
        self._memory = SnapshotMemoryPool()
        self._saved_at, self._last_loop_seconds = clock(), 0.0
        self._printed_at: float | None = None
        self._loaded_samples = self._snapshot_samples = -1
        self._snapshots = self.commits = 0
        self.loop_seconds = self.commit_seconds = 0.0

    def load(self) -> dict[str, Any] | None:
        """Load the newest checkpoint that can be read; None if there is none."""
        if self._checkpoints is None:
            return None
        return self._checkpoints.load(lambda path, verified: read_snapshot(path, _NEEDED, verified), _BROKEN)

    def resumed(self, samples: int) -> None:
        """Note that the training continues from the checkpoint at a sample counter."""
        self._loaded_samples = samples

    def is_saved(self, samples: int) -> bool:
        """Whether the state at a sample counter is on disk; True if there are no checkpoints."""
        return self._saver is None or samples in (self._loaded_samples, self._saver.written.last_samples)

    def save(self, samples: int, content: Callable[[], Mapping[str, Any]]) -> None:
        """Take a snapshot, which is written in the background.

        Never raises: what goes wrong is printed on stderr, each kind once.

        Args:
            samples: The job's sample counter.
            content: Returns the state. It is copied before this returns.
        """
        if self._saver is None:
            return
        with phase(SAVE):
            self._save(self._saver, samples, content)

    def _save(self, saver: BackgroundSaver, samples: int, content: Callable[[], Mapping[str, Any]]) -> None:
        started = self._clock()
        try:
            memory = self._memory.acquire()
            copied = snapshot_of(content(), "checkpoint", memory)
            saver.submit(Snapshot(samples, writer_of(copied), memory.release))
            self._snapshot_samples = samples
        except Exception as error:  # noqa: BLE001 - memory may be short, or a user's object raise anything
            self._warnings.warn(
                f"snapshot {type(error).__name__}", f"no checkpoint at {samples} samples: {describe(error)}"
            )
            note_save(error)
        self._saved_at = self._clock()
        self._last_loop_seconds = self._saved_at - started
        self.loop_seconds += self._last_loop_seconds
        self._snapshots += 1

    def save_and_wait(self, samples: int, content: Callable[[], Mapping[str, Any]]) -> bool:
        """Make sure that a state is on disk; returns whether it is.

        Args:
            samples: The job's sample counter.
            content: Returns the state. It is not called if the state is on disk or being written.
        """
        if self._snapshot_samples == samples:
            self.wait()
        if not self.is_saved(samples):
            self.save(samples, content)
            self.wait()
        return self.is_saved(samples)

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
        """Mean times of this process in seconds: commits in memory, checkpoints in the loop and in the background."""
        found: dict[str, float] = {}
        if self.commits:
            found["commit_seconds"] = self.commit_seconds / self.commits
        if self._saver is not None and self._saver.written.count:
            written = self._saver.written
            found["checkpoint_loop_seconds"] = self.loop_seconds / self._snapshots
            found["checkpoint_background_seconds"] = written.seconds / written.count
        return {name: round(value, 6) for name, value in found.items()}

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
