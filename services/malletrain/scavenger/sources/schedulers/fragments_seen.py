"""Since when each node is idle, as far as polls can tell, and how long it lasted. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

KEPT_LENGTHS = 2000
_LONGEST_ABSENCE_SECONDS = 600.0


class IdleAges:
    """Remembers when each node was first seen idle, and the lengths of the newest fragments that have ended."""

    def __init__(self, since: Mapping[str, float] | None = None, lengths: Iterable[float] = ()) -> None:
        """Begin with what is known: since when nodes are idle (seconds since the epoch), and lengths in seconds."""
        self._since = dict(since or {})
        self._lengths = deque(lengths, maxlen=KEPT_LENGTHS)

    @classmethod
    def restored(cls, content: Mapping[str, Any], now: float) -> IdleAges:
        """What `content` was before; nodes that were idle long ago may have been used in between, and begin anew."""
        lengths = content.get("lengths", ())
        known = [float(entry) for entry in lengths if _is_number(entry)] if isinstance(lengths, list) else []
        since, time = content.get("idle_since"), content.get("time")
        if not isinstance(since, dict) or not _is_number(time) or not 0 <= now - time <= _LONGEST_ABSENCE_SECONDS:
            return cls(lengths=known)
        return cls({name: float(begin) for name, begin in since.items() if _is_number(begin) and begin <= now}, known)

    @property
    def lengths(self) -> tuple[float, ...]:
        """Seconds that fragments lasted which have ended, oldest first."""
        return tuple(self._lengths)

    def content(self, now: float) -> dict[str, Any]:
        """What `restored` needs."""
        return {"time": now, "idle_since": self._since, "lengths": list(self._lengths)}

    def update(self, now: float, idle: Iterable[str]) -> dict[str, float]:
        """Each idle node with the time since when, in seconds since the epoch; the others' fragments have ended."""
        before = self._since
        self._since = {name: min(before.get(name, now), now) for name in idle}
        ended = (now - since for name, since in before.items() if name not in self._since)
        self._lengths.extend(length for length in ended if length > 0)
        return dict(self._since)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
