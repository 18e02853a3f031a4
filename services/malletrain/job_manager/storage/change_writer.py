"""Stores JobManager's changes in order, many in one transaction, and knows which jobs are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.kernel.write_behind import WriteBehind

_MAX_EVENTS = 100_000
"""Rows of the journal that wait at most; the oldest are dropped then, and that is logged."""


@dataclass(frozen=True)
class _Batch:
    """Changes that are stored together, and the jobs that are not in a final state, as they are after them."""

    change: Change
    jobs: Mapping[str, Job]


class ChangeWriter:
    """Stores JobManager's changes behind its state; see `WriteBehind`.

    Attributes:
        stored_jobs: Jobs that are not in a final state, as they were last stored.
    """

    def __init__(
        self,
        store: JobStore,
        jobs: Mapping[str, Job],
        on_stored: Callable[[], None],
        may_begin: Callable[[], Awaitable[None]],
    ) -> None:
        """
        Args:
            store: Where changes are stored.
            jobs: What is stored now.
            on_stored: Called after each batch.
            may_begin: Waits until a batch may be begun: the thread that stores it takes the interpreter from the loop.
        """
        self.stored_jobs = jobs
        self._on_stored = on_stored
        self._batches = WriteBehind[_Batch](
            lambda batch: store.save(batch.change),
            _merge,
            "job_manager",
            on_stored=self._note_stored,
            may_begin=may_begin,
        )
        self.run, self.flush, self.wait_until_stored = (
            self._batches.run,
            self._batches.flush,
            self._batches.wait_until_stored,
        )

    @property
    def behind(self) -> bool:
        """Whether changes wait or are being written."""
        return self._batches.behind

    @property
    def failing(self) -> bool:
        """Whether the database did not answer the last time."""
        return self._batches.failing

    def add(self, change: Change, jobs: Mapping[str, Job]) -> None:
        """Have a change stored soon: what has happened is not refused.

        Args:
            jobs: Jobs that are not in a final state, as they are after it.
        """
        self._batches.add(_Batch(change, jobs))

    def write_now(self, change: Change, jobs: Mapping[str, Job]) -> None:
        """Store a change before this returns: for what is only done if it is stored. Nothing else may wait.

        Raises:
            CommitUnknownError: it is stored, or will be: it waits.
            DatabaseUnavailableError: it is not stored, and will not be.
        """
        self._batches.write_now(_Batch(change, jobs))
        self.stored_jobs = jobs

    def _note_stored(self, batch: _Batch) -> None:
        self.stored_jobs = batch.jobs
        self._on_stored()


def _merge(earlier: _Batch, later: _Batch) -> _Batch:
    change = earlier.change.followed_by(later.change)
    if len(change.events) > _MAX_EVENTS:
        structlog.get_logger(__name__).error("rows of the journal dropped: too many wait for the database")
        change = replace(change, events=change.events[-_MAX_EVENTS:])
    return _Batch(change, later.jobs)
