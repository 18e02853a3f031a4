"""From pictures of a source to a trace of idle fragments. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.sources.base import Observation

_LONGEST_GAP_SECONDS = 60.0


class FragmentRecorder:
    """Collects the fragments that a source shows. Second 0 is the first picture.

    A fragment ends with the first picture that no longer has it; where the source was silent for long before that, with
    the last one that had it: nobody knows what happened in between.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._last = 0.0
        self._open: dict[str, float] = {}
        self._ended: list[Fragment] = []
        self._names: set[str] = set()

    @property
    def idle(self) -> int:
        """Nodes that were idle in the last picture."""
        return len(self._open)

    @property
    def known(self) -> int:
        """Nodes that were ever seen."""
        return len(self._names)

    def observe(self, observation: Observation) -> None:
        """Take over a picture; one that is stale tells nothing."""
        if observation.stale:
            return
        now, idle = observation.time, observation.idle
        if self._begin is None:
            self._begin = self._last = now
        now = max(now, self._last)
        end = now if now - self._last <= _LONGEST_GAP_SECONDS else self._last
        for name, since in list(self._open.items()):
            if name not in idle or idle[name] > since:
                self._close(name, end)
        for name, since in idle.items():
            self._open.setdefault(name, since)
        self._names.update(idle, observation.known)
        self._last = now

    def trace(self) -> Trace | None:
        """What was seen up to the last picture; None before any time has passed."""
        if self._begin is None or self._last <= self._begin:
            return None
        names = tuple(sorted(self._names))
        order = {name: index for index, name in enumerate(names)}
        found = sorted([*self._ended, *self._going_on()], key=lambda entry: (entry.idle_from_s, order[entry.node]))
        origin = datetime.fromtimestamp(self._begin, UTC).isoformat()
        return Trace(tuple(found), names, self._last - self._begin, 0.0, origin)

    def _going_on(self) -> Iterator[Fragment]:
        for name in self._open:
            if (fragment := self._fragment(name, self._last)) is not None:
                yield fragment

    def _close(self, name: str, end: float) -> None:
        if (fragment := self._fragment(name, end)) is not None:
            self._ended.append(fragment)
        del self._open[name]

    def _fragment(self, name: str, end: float) -> Fragment | None:
        begin = self._begin or 0.0
        # What was idle before the first picture counts from there on: how long before, nobody has seen.
        since = max(0.0, round(self._open[name] - begin, 3))
        until = round(end - begin, 3)
        return Fragment(name, since, until) if until > since else None
