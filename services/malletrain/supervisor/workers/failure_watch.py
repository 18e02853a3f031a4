"""Keeps what a generation's workers have ended with until it is over, and then says what that means for the job.

An exit by the script is the script's: the supervisor ends, and JobManager decides whether and when the job starts
again. What somebody else has done to a worker is mended here, at once, but not for ever.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from malletrain.common.error_texts import ErrorText, read_error
from malletrain.common.files import open_plain
from malletrain.common.job_folder import worker_log
from malletrain.supervisor.workers.root_cause import Failure, MemberEnd, failure_of
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import Consequence, Verdict, WorkerExit

_TAIL_BYTES = 1 << 15


class LogTails:
    """The position in its log at which each worker began, so that earlier ones' text is not taken for its own."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._begins: dict[Slot, int] = {}

    def begin(self, slot: Slot) -> None:
        """The worker of a slot begins now."""
        try:
            self._begins[slot] = (self._logs / worker_log(*slot)).lstat().st_size
        except OSError:
            self._begins[slot] = 0

    def error_text(self, slot: Slot) -> ErrorText:
        """What the worker of a slot has said at its end; nothing if its log can't be read."""
        try:
            with open_plain(self._logs / worker_log(*slot)) as file:
                size = os.fstat(file.fileno()).st_size
                begin = self._begins.get(slot, 0)
                file.seek(max(begin if begin <= size else 0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ErrorText()
        return read_error(text)


_FORGIVE_SECONDS = 600.0
"""Failures before a run that was good for so long do not count any more."""
_LATE_SECONDS = 60.0
"""An end so long after the first one is another story."""


class FailureWatch:
    """The failures of a job's workers under one supervisor.

    Attributes:
        newest: Why workers of the present generation have failed; None: none has, or it is not settled yet.
    """

    def __init__(self, tails: LogTails, restarts_left: int) -> None:
        """
        Args:
            restarts_left: How often the job may still be restarted after failures of its own.
        """
        self.newest: Failure | None = None
        self._tails = tails
        self._left = restarts_left
        self._count = 0
        self._scale = 0
        self._formed_at: float | None = None
        self._ends: list[MemberEnd] = []

    def begin_generation(self, scale: int, now: float) -> None:
        """A generation begins on so many hosts."""
        self._scale, self._formed_at, self.newest = scale, now, None
        self._ends.clear()

    @property
    def open(self) -> bool:
        """Whether a worker has failed, and it is not settled yet what that means."""
        return bool(self._ends)

    def note_end(self, ended: WorkerExit, now: float, *, failed: bool, rescued: bool, newcomer: bool = False) -> None:
        """A worker has ended.

        Args:
            ended: The worker.
            now: Monotonic seconds.
            failed: Whether it failed by itself. Other ends count only after a failure.
            rescued: Whether it was asked to save, or killed, after another one had ended.
            newcomer: Whether it was only about to take part.
        """
        if not (failed or self._ends):
            return
        if failed and self._ends and now > self._ends[0].at + _LATE_SECONDS and not rescued:
            self._ends.clear()
        self._ends.append(MemberEnd(ended, now, self._tails.error_text(ended.slot), rescued, newcomer))

    @property
    def so_far(self) -> str:
        """What has failed, as far as is known by now; empty if nothing has."""
        return failure_of(self._ends, self._scale, 0.0).message if self._ends else ""

    def settle(self, now: float, *, goes_on: bool = False) -> Verdict | None:
        """All that had to end has ended.

        Args:
            now: Monotonic seconds.
            goes_on: Whether others go on with the state. What newcomers or somebody else have done costs them little,
                and does not count then.

        Returns:
            What it means for the job; None: nothing has failed.
        """
        if not self._ends:
            return None
        seconds = 0.0 if self._formed_at is None else now - self._formed_at
        failure = failure_of(self._ends, self._scale, seconds)
        self._ends.clear()
        counts = failure.by_script and not failure.newcomer if goes_on else not failure.taken
        if counts:
            self._count = (0 if seconds >= _FORGIVE_SECONDS else self._count) + 1
        self.newest = replace(failure, count=max(1, self._count))
        at_once = failure.by_script and not goes_on
        fatal = at_once or (counts and self._count > self._left)
        return Verdict(Consequence.FAIL if fatal else Consequence.NOTE, failure.message)
