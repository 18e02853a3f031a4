"""Has the processes of a command end in order: those that save first, what waits for them afterwards."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from malletrain.common.leaving import Member, first_to_leave
from malletrain.common.processes import (
    ProcessId,
    ProcessStatus,
    identify,
    process_ids,
    read_arguments,
    read_caught_signals,
    read_name,
    read_status,
)

_REST_SECONDS = 5.0
"""How long a wrapper has at most for its own last lines, once the trainer has ended."""
_LATE_SECONDS = 2.0
_LATE_SHARE = 0.25
"""So long before the end, and at most this share of the grace, whoever has a handler is asked though others save."""


class OrderlyLeave:
    """One command that was asked to end.

    The trainer gets SIGTERM at once. When it has ended, the others have half of the time that is left, and at most 5 s,
    to end by themselves, and get SIGTERM then. Shortly before the end of the grace, those with a handler get it in any
    case, but for launchers. Who kills what is left is not decided here.
    """

    def __init__(self, root: int, now: float, grace: float, user_id: int | None = None) -> None:
        """Ask those that are first.

        Args:
            root: Process id of the command, which is also that of its process group.
            now: Monotonic seconds.
            grace: Seconds until it is killed.
            user_id: Whose processes they must be; None: anybody's that may be signalled.
        """
        self._root = root
        self._user_id = user_id
        self._asked = set[ProcessId]()
        self._rest_at: float | None = None
        self._asked_late = self._asked_all = False
        self._begun = now
        self._end = self._late_at = float("inf")
        self.shorten(now + grace)
        members = read_members(root)
        chosen = set(first_to_leave(root, members))
        self._ask(member for member in members if member.pid in chosen)
        self._first = frozenset(self._asked)

    def shorten(self, end: float) -> None:
        """It is killed at this time, unless that was to be earlier anyway."""
        if end < self._end:
            self._end = end
            self._late_at = end - min(_LATE_SECONDS, _LATE_SHARE * (end - self._begun))

    def advance(self, now: float) -> None:
        """Ask whoever is due. Cheap; call it often."""
        if self._asked_all:
            return
        if self._rest_at is None and not any(process.alive() for process in self._first):
            self._rest_at = now + min(_REST_SECONDS, max(0.0, self._end - now) / 2)
        if self._rest_at is not None and now >= self._rest_at:
            self._asked_all = True
            self._ask(read_members(self._root))
        elif now >= self._late_at and not self._asked_late:
            self._asked_late = True
            # A launcher would pass it on to ranks that have been asked already, and may be saving.
            self._ask(member for member in read_members(self._root) if member.catches and not member.is_launcher)

    def _ask(self, members: Iterable[Member]) -> None:
        for member in members:
            process = identify(member.pid)
            if process is None or process in self._asked or member.is_ours:
                continue
            self._asked.add(replace(process, user_id=self._user_id))
            with contextlib.suppress(PermissionError):
                replace(process, user_id=self._user_id).kill(signal.SIGTERM)


def read_members(root: int) -> list[Member]:
    """The live processes of a command: those of its process group, and the descendants of its first process.

    Args:
        root: Process id of that process.
    """
    statuses = {pid: status for pid in process_ids() if (status := read_status(pid)) is not None and not status.ended}
    return [_read(pid, statuses[pid]) for pid in _pids_of(root, statuses)]


def _pids_of(root: int, statuses: dict[int, ProcessStatus]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, status in statuses.items():
        children.setdefault(status.parent, []).append(pid)
    found = dict.fromkeys(pid for pid, status in statuses.items() if pid == root or status.group == root)
    open_pids = list(found)
    while open_pids:
        for pid in children.get(open_pids.pop(), ()):
            if pid not in found:
                found[pid] = None
                open_pids.append(pid)
    return list(found)


def _read(pid: int, status: ProcessStatus) -> Member:
    return Member(
        pid,
        status.parent,
        read_name(pid),
        tuple(read_arguments(pid)),
        signal.SIGTERM in read_caught_signals(pid),
        _pipe(pid, 0),
        frozenset(filter(None, (_pipe(pid, 1), _pipe(pid, 2)))),
    )


def _pipe(pid: int, descriptor: int) -> str:
    try:
        target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:  # it has ended, has closed it, or is another user's
        return ""
    return target if target.startswith("pipe:") else ""
