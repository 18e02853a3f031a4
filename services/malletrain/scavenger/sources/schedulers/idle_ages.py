"""Since when each node is idle, as far as polls tell, and how long idle fragments lasted. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

KEPT_LENGTHS = 2000
_MAX_ABSENCE_SECONDS = 600.0


class IdleAges:
    """When each node was first seen idle, and the lengths of the newest fragments that have ended."""

    def __init__(self, since: Mapping[str, float] | None = None, lengths: Iterable[float] = ()) -> None:
        self._since = dict(since or {})
        self._lengths = deque(lengths, maxlen=KEPT_LENGTHS)

    @classmethod
    def restored(cls, content: Mapping[str, Any], now: float) -> IdleAges:
        """The ages from what `content` returned before.

        Ages that are older than ten minutes are dropped: the nodes may have been used meanwhile. Lengths are kept.

        Args:
            content: What was stored; parts that can't be read are dropped.
            now: Seconds since the epoch.
        """
        lengths = content.get("lengths", ())
        known = [float(entry) for entry in lengths if _is_number(entry)] if isinstance(lengths, list) else []
        since, time = content.get("idle_since"), content.get("time")
        if not isinstance(since, dict) or not _is_number(time) or not 0 <= now - time <= _MAX_ABSENCE_SECONDS:
            return cls(lengths=known)
        return cls({name: float(begin) for name, begin in since.items() if _is_number(begin) and begin <= now}, known)

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        self._since = {name: since + seconds for name, since in self._since.items()}

    @property
    def lengths(self) -> tuple[float, ...]:
        """Lengths in seconds of the fragments that have ended, oldest first; at most 2,000."""
        return tuple(self._lengths)

    def content(self, now: float) -> dict[str, Any]:
        """What `restored` needs, for JSON."""
        return {"time": now, "idle_since": self._since, "lengths": list(self._lengths)}

    def update(self, now: float, idle: Iterable[str]) -> dict[str, float]:
        """Take over which nodes are idle; the fragments of the others have ended.

        Returns:
            Each idle node, and since when it is idle, in seconds since the epoch.
        """
        before = self._since
        self._since = {name: min(before.get(name, now), now) for name in idle}
        ended = (now - since for name, since in before.items() if name not in self._since)
        self._lengths.extend(length for length in ended if length > 0)
        return dict(self._since)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
