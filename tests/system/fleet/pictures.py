"""A dataset whose samples are costly to prepare, and which notes each that is prepared."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy

SIDE = 8


class Pictures:
    """Noisy pictures in two classes."""

    def __init__(self, size: int, log: str, cost_seconds: float) -> None:
        self._size = size
        self._log = log
        self._cost_seconds = cost_seconds

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        with open(self._log, "a") as log:  # noqa: PTH123 - one short write, which is not torn
            log.write(f"{index} {os.getpid()}\n")
        picture = numpy.random.rand(3, SIDE, SIDE) + (index % 2)
        until = time.process_time() + self._cost_seconds
        while time.process_time() < until:
            numpy.roll(picture, 1, axis=2)
        return picture.astype(numpy.float32), {"label": index % 2, "index": index}


def pictures(size: int, log: str, cost_seconds: float) -> Pictures:
    """The dataset."""
    return Pictures(size, log, cost_seconds)
