"""The checkpoints of a training with torch: what is in them, what they cost, when they are worth it."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from malletrain.client.buffers import Buffers
from malletrain.client.checkpoints import Checkpoints
from malletrain.client.complaints import Complaints, describe
from malletrain.client.saving import BackgroundSaver, Snapshot
from malletrain.client.snapshots import read_snapshot, snapshot_of, writer_of

_BROKEN = (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError)
_NEEDED = frozenset({"model", "optimizer", "samples"})
_MOST_IN_LOOP = 0.05
"""Share of the time that may go into snapshots beyond those of the interval."""
_MOST_IN_BACKGROUND = 0.2
"""Share of the time that the disk may be busy with them."""
_SAY_SECONDS = 600.0


class DurableTraining:
    """Takes snapshots of a training and has them saved.

    Attributes:
        loop_seconds: Time that snapshots took in the training loop, together.
        commit_seconds: Time that commits in memory took in the training loop, together.
        commits: Their number.
    """

    def __init__(
        self, folder: Path | None, interval_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is written before the first `save`.

        Args:
            folder: Where checkpoints go; None: nowhere.
            interval_seconds: Longest time between two checkpoints.
            clock: Seconds.
        """
        self._complaints = Complaints()
        self._interval = interval_seconds
        self._clock = clock
        self._checkpoints = Checkpoints(folder) if folder else None
        self._saver = BackgroundSaver(self._checkpoints, self._complaints, clock) if self._checkpoints else None
        self._buffers = Buffers()
        self._saved_at, self._last_loop_seconds = clock(), 0.0
        self._said_at: float | None = None
        self._loaded_samples = self._snapshot_samples = -1
        self._snapshots = self.commits = 0
        self.loop_seconds = self.commit_seconds = 0.0

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; None without."""
        if self._checkpoints is None:
            return None
        return self._checkpoints.load(lambda path, sealed: read_snapshot(path, _NEEDED, sealed), _BROKEN)

    def resumed(self, samples: int) -> None:
        """Take note that the training goes on from the checkpoint at this sample counter."""
        self._loaded_samples = samples

    def holds(self, samples: int) -> bool:
        """Whether the state at this sample counter is on disk, or has nowhere to go."""
        return self._saver is None or samples in (self._loaded_samples, self._saver.written.last_samples)

    def save(self, samples: int, content: Callable[[], Mapping[str, Any]]) -> None:
        """Take a snapshot, to be written in the background.

        What goes wrong is said on stderr, once of each kind; the training goes on.

        Args:
            samples: The job's sample counter.
            content: The state; its entries are copied before this returns.
        """
        if self._saver is None:
            return
        started = self._clock()
        try:
            memory = self._buffers.lend()
            copied = snapshot_of(content(), "checkpoint", memory)
            self._saver.submit(Snapshot(samples, writer_of(copied), memory.give_back))
            self._snapshot_samples = samples
        except Exception as error:  # noqa: BLE001 - memory may be short, or a user's object raise anything
            self._complaints.say(
                f"snapshot {type(error).__name__}", f"no checkpoint at {samples} samples: {describe(error)}"
            )
        self._saved_at = self._clock()
        self._last_loop_seconds = self._saved_at - started
        self.loop_seconds += self._last_loop_seconds
        self._snapshots += 1

    def secure(self, samples: int, content: Callable[[], Mapping[str, Any]]) -> bool:
        """Have a state on disk when this returns; False if that can't be done.

        Args:
            samples: The job's sample counter.
            content: The state; not asked for if it is on disk or under way already.
        """
        if self._snapshot_samples == samples:
            self.wait()
        if not self.holds(samples):
            self.save(samples, content)
            self.wait()
        return self.holds(samples)

    def wait(self) -> None:
        """Wait until the last snapshot is on disk."""
        if self._saver is not None:
            self._saver.wait()

    def is_due(self, committing: bool) -> bool:
        """Whether it is time for a checkpoint: the interval is over, or there is a commit and it costs next to nothing.

        Args:
            committing: Whether a commit in memory is about to be made.
        """
        if self._saver is None or self._saver.busy:
            return False
        self._say_cost()
        since = self._clock() - self._saved_at
        if since >= self._interval:
            return True
        return (
            committing
            and self._last_loop_seconds <= _MOST_IN_LOOP * since
            and self._saver.written.last_seconds <= _MOST_IN_BACKGROUND * since
        )

    def committed(self, seconds: float) -> None:
        """Count a commit in memory, which took so many seconds."""
        self.commits += 1
        self.commit_seconds += seconds

    def costs(self) -> dict[str, float]:
        """Means of this process, in seconds: a commit in memory, a checkpoint in the loop and in the background."""
        found: dict[str, float] = {}
        if self.commits:
            found["commit_seconds"] = self.commit_seconds / self.commits
        if self._saver is not None and self._saver.written.count:
            written = self._saver.written
            found["checkpoint_loop_seconds"] = self.loop_seconds / self._snapshots
            found["checkpoint_background_seconds"] = written.seconds / written.count
        return {name: round(value, 6) for name, value in found.items()}

    def _say_cost(self) -> None:
        """After the first checkpoint, and then every ten minutes."""
        now = self._clock()
        costs = self.costs()
        if "checkpoint_loop_seconds" not in costs or self._saver is None:
            return
        if self._said_at is not None and now - self._said_at < _SAY_SECONDS:
            return
        self._said_at = now
        loop, background = costs["checkpoint_loop_seconds"], costs["checkpoint_background_seconds"]
        size = self._saver.written.last_bytes / 1e6
        print(
            f"malletrain: a checkpoint ({size:.1f} MB) takes {loop:.3f} s of the training"
            f" and {background:.3f} s in the background, a commit in memory {costs.get('commit_seconds', 0.0):.3f} s",
            file=sys.stderr,
        )
