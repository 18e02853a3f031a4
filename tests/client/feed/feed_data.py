"""The dataset of the tests: it notes each sample that is prepared, and by whom."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy


class NotedDataset:
    """Pictures with noise.

    Attributes:
        size: Samples.
    """

    def __init__(self, size: int, log: str, fails_at: int = -1, pause: float = 0.0) -> None:
        self.size = size
        self._log = log
        self._fails_at = fails_at
        self._pause = pause

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        with open(self._log, "a") as log:  # noqa: PTH123 - one short write, which is not torn
            log.write(f"{index} {os.getpid()}\n")
        if index == self._fails_at:
            raise KeyError(f"sample {index} is broken")
        time.sleep(self._pause)  # what reads from a slow disk takes
        picture = numpy.full((2, 4, 4), index / self.size) + 0.1 * numpy.random.rand(2, 4, 4)
        return picture.astype(numpy.float32), {"label": index, "shift": random.random()}


def noted(size: int, log: str, fails_at: int = -1, pause: float = 0.0) -> NotedDataset:
    """The dataset."""
    return NotedDataset(size, log, fails_at, pause)


def shorter(size: int, log: str, fails_at: int = -1, pause: float = 0.0) -> NotedDataset:
    """Another dataset than the trainings have."""
    return NotedDataset(size - 1, log, fails_at, pause)


def unsuitable(size: int, log: str, fails_at: int = -1, pause: float = 0.0) -> NotedDataset:
    """A dataset whose samples can't be shared."""

    class Unsuitable(NotedDataset):
        def __getitem__(self, index: int) -> Any:
            return "a name", super().__getitem__(index)

    Unsuitable.__qualname__ = "NotedDataset"
    return Unsuitable(size, log, fails_at, pause)


def late(size: int, log: str, fails_at: int = -1, pause: float = 0.0) -> NotedDataset:
    """A dataset that imports torch at its first sample only."""

    class Late(NotedDataset):
        def __getitem__(self, index: int) -> Any:
            import torch

            return torch.rand(2, 4, 4), super().__getitem__(index)[1] | {"shift": torch.rand(()).item()}

    Late.__qualname__ = "NotedDataset"
    return Late(size, log, fails_at, pause)


def broken(**arguments: Any) -> NotedDataset:
    """A function that fails."""
    raise OSError(f"the disk of {sorted(arguments)} is not there")
