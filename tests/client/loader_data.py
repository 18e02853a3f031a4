"""Data sets that loader processes can import, also those that are spawned."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from torch.utils.data import Dataset


class Numbers(Dataset[tuple[int, int]]):
    """Each sample is its index, and the process that has read it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def numbers_from(number: int) -> Iterator[tuple[int, int]]:
    """The sample of a number is that number, and the process that has read it."""
    return ((found, os.getpid()) for found in itertools.count(number))


def ten_numbers_from(number: int) -> Iterator[int]:
    """A stream of ten samples."""
    return iter(range(number, 10))
