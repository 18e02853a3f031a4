"""The jobs that wait, in order of submission."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.batch.workload import BatchJob

_FIRST_ROOM = 64

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class WaitQueue:
    """The waiting jobs as arrays, so that a decision on ten thousand jobs takes microseconds.

    Positions run from 0, the earliest submission, to `len() - 1`. When a job is removed, those behind it move up.
    """

    def __init__(self) -> None:
        self._count = 0
        self._index: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._nodes: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._estimate_s: Floats = np.empty(_FIRST_ROOM, dtype=np.float64)
        self._submit_s: Floats = np.empty(_FIRST_ROOM, dtype=np.float64)

    def __len__(self) -> int:
        return self._count

    @property
    def nodes(self) -> Ints:
        """Number of nodes of each job, shape (jobs,)."""
        return self._nodes[: self._count]

    @property
    def estimate_s(self) -> Floats:
        """Estimated run time of each job in seconds, shape (jobs,)."""
        return self._estimate_s[: self._count]

    @property
    def submit_s(self) -> Floats:
        """Submission of each job in seconds, shape (jobs,)."""
        return self._submit_s[: self._count]

    def job_at(self, position: int) -> int:
        """Index of the job at a position, as given to `add`."""
        return int(self._index[position])

    @property
    def indices(self) -> Ints:
        """Index of each job, ascending, as given to `add`; shape (jobs,)."""
        return self._index[: self._count]

    def position_of(self, index: int) -> int | None:
        """Position of a job by its index; None if it does not wait."""
        position = int(self.indices.searchsorted(index))
        return position if position < self._count and self._index[position] == index else None

    def add(self, first: int, jobs: Sequence[BatchJob]) -> None:
        """Append jobs with the indices `first`, `first + 1`, …"""
        begin, end = self._count, self._count + len(jobs)
        self._make_room(end)
        self._index[begin:end] = np.arange(first, first + len(jobs))
        self._nodes[begin:end] = [job.nodes for job in jobs]
        self._estimate_s[begin:end] = [job.estimate_s for job in jobs]
        self._submit_s[begin:end] = [job.submit_s for job in jobs]
        self._count = end

    def insert(self, index: int, job: BatchJob) -> None:
        """Put a job that was held back where its submission belongs."""
        place, end = int(self.indices.searchsorted(index)), self._count
        self._make_room(end + 1)
        values = (index, job.nodes, job.estimate_s, job.submit_s)
        for column, value in zip((self._index, self._nodes, self._estimate_s, self._submit_s), values, strict=True):
            column[place + 1 : end + 1] = column[place:end].copy()
            column[place] = value
        self._count = end + 1

    def remove(self, position: int) -> None:
        """Remove the job at a position."""
        end = self._count
        for column in (self._index, self._nodes, self._estimate_s, self._submit_s):
            column[position : end - 1] = column[position + 1 : end]
        self._count = end - 1

    def _make_room(self, wanted: int) -> None:
        room = len(self._index)
        if wanted <= room:
            return
        more = max(wanted, 2 * room) - room
        self._index = np.pad(self._index, (0, more))
        self._nodes = np.pad(self._nodes, (0, more))
        self._estimate_s = np.pad(self._estimate_s, (0, more))
        self._submit_s = np.pad(self._submit_s, (0, more))
