"""What is recorded of the idle set, so that it can be replayed later: which nodes joined and left, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

ROWS_PER_SNAPSHOT = 1000
"""So many changes are recorded between two whole sets: older rows can be deleted, and the rest still makes sense."""
MAX_UNSTORED = 10_000
"""Rows that wait at most while the database is away. Then they are dropped, and a whole set follows."""


class IdleRowKind(StrEnum):
    """What a row has in `joined`: the whole set at the start of an Allocator, the whole set, or only what joined."""

    START = "START"
    ALL = "ALL"
    CHANGE = "CHANGE"

    @property
    def whole(self) -> bool:
        """Whether `joined` is the whole set."""
        return self is not IdleRowKind.CHANGE


@dataclass(frozen=True, slots=True)
class IdleRow:
    """One row: a change of the idle set, or the whole set.

    Attributes:
        unix_seconds: When, in seconds since the epoch, by the Scavenger's clock.
        kind: What `joined` has.
        joined: Nodes that joined, or the whole set; each with when its idle fragment began, in seconds since the epoch.
        left: Nodes that left; empty with a whole set.
    """

    unix_seconds: float
    kind: IdleRowKind
    joined: Mapping[str, float]
    left: tuple[str, ...] = ()


class IdleHistory:
    """Makes rows of what the Scavenger tells."""

    def __init__(self) -> None:
        self._idle: dict[str, float] = {}
        self._since_whole = 0
        self._started = False

    def begin_anew(self) -> None:
        """Rows have been dropped: the next one has the whole set."""
        self._since_whole = ROWS_PER_SNAPSHOT

    def row(self, unix_seconds: float, joined: Mapping[str, float], left: Iterable[str], *, snapshot: bool) -> IdleRow:
        """The row of a change, or of the whole set with `snapshot`; arguments as the fields of `IdleRow`."""
        left = () if snapshot else tuple(left)
        if snapshot:
            self._idle.clear()
        for name in left:
            self._idle.pop(name, None)
        self._idle.update(joined)
        kind = IdleRowKind.ALL if snapshot or self._since_whole >= ROWS_PER_SNAPSHOT else IdleRowKind.CHANGE
        if not self._started:
            kind, self._started = IdleRowKind.START, True
        if kind.whole:
            self._since_whole = 0
            return IdleRow(unix_seconds, kind, dict(self._idle))
        self._since_whole += 1
        return IdleRow(unix_seconds, kind, dict(joined), left)
