"""What rank 0 of the training under test has done, read as it grows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BATCH = 8
"""Samples per worker and batch of `tests/supervisor/trainer.py`."""


@dataclass(frozen=True, order=True)
class Batch:
    """One batch: seconds since the epoch, samples before it, workers, rank 0's process."""

    time: float
    before: int
    size: int
    pid: int


@dataclass(frozen=True)
class Losses:
    """What a fault has cost: batches done in vain, and the longest pause between two, in seconds."""

    batches: float
    pause: float


class Notes:
    """Reads every line once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._batches: list[Batch] = []

    def batches(self) -> Sequence[Batch]:
        """All batches so far, in order of time."""
        for path in self._folder.glob("notes-*.jsonl"):
            with path.open("rb") as stream:
                stream.seek(self._read.get(path, 0))
                whole = stream.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole[0]) + len(whole[1])
            self._batches += (_batch(line) for line in map(json.loads, whole[0].splitlines()) if _counts(line))
        self._batches.sort()
        return self._batches


def _counts(line: dict[str, object]) -> bool:
    return line["event"] == "batch" and line["rank"] == 0


def _batch(line: dict[str, float]) -> Batch:
    return Batch(line["time"], int(line["before"]), int(line["size"]), int(line["pid"]))


def losses(batches: Sequence[Batch], since: float) -> Losses:
    """Losses from just before a moment on. Pure.

    Args:
        batches: In order of time.
        since: Seconds since the epoch.
    """
    first = max(0, next((i for i, batch in enumerate(batches) if batch.time > since), len(batches)) - 1)
    lost, pause = 0.0, 0.0
    for batch, following in zip(batches[first:], batches[first + 1 :], strict=False):
        step = BATCH * batch.size
        lost += max(0, batch.before + step - following.before) / step
        pause = max(pause, following.time - batch.time)
    return Losses(lost, pause)
