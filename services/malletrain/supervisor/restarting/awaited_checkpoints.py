"""Checkpoints that agents still copy to the job's folder: the next generation goes on from them if they come in time.

Their marks are written by the job's workers, and removed by what copies them; see `malletrain.common.stage_out`. What
never ends, since a node or its agent is lost, is waited for until its time is over.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from malletrain.common.stage_out import MAX_SECONDS, seconds_of_mark

_MAX_MARKS = 4096
_BEGIN_SECONDS = 5.0
"""How long after the workers' end a copy may begin, and take to clean up."""
_APART_SECONDS = 60.0
"""By how much the clocks of nodes, file servers and this machine may differ."""


class AwaitedCheckpoints:
    """The checkpoints of one job that are awaited before it starts again."""

    def __init__(self, folder: Path, wall_clock: Callable[[], float] = time.time) -> None:
        """Nothing is looked at yet.

        Args:
            folder: Where their marks are. It need not exist.
            wall_clock: Seconds since the epoch.
        """
        self._folder = folder
        self._wall_clock = wall_clock
        self._until: dict[str, float] = {}
        self._wait_by: float | None = None

    def seconds_left(self, now: float) -> float:
        """How long they are waited for at most, in seconds; 0 where there are none. Call it often.

        Args:
            now: Monotonic seconds.
        """
        try:
            with os.scandir(self._folder) as entries:
                names = {entry.name for entry in itertools.islice(entries, _MAX_MARKS) if entry.name[0] != "."}
        except OSError:  # none has ever been staged out, or the disk is away: nobody trains without it either
            names = set()
        self._until = {name: until for name, until in self._until.items() if name in names}
        for name in names - self._until.keys():
            self._until[name] = now + self._longest_wait(self._folder / name)
        for name, until in self._until.items():
            if now >= until:
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
        return self._limited(max(self._until.values(), default=now), now)

    def _limited(self, until: float, now: float) -> float:
        """Seconds until `until`; marks that follow each other get no longer together than one may take."""
        if until <= now:
            self._wait_by = None
            return 0.0
        if self._wait_by is None:
            self._wait_by = now + MAX_SECONDS + _BEGIN_SECONDS
        return max(0.0, min(until, self._wait_by) - now)

    def _longest_wait(self, mark: Path) -> float:
        """Longest wait from now in seconds for a mark that is seen for the first time, maybe long after it was left."""
        seconds = seconds_of_mark(mark)
        try:
            age = self._wall_clock() - mark.stat(follow_symlinks=False).st_mtime
        except OSError:
            return 0.0
        longest = seconds + _BEGIN_SECONDS
        return longest if seconds and age < longest + _APART_SECONDS else 0.0
