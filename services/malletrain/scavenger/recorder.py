"""Records a trace of idle fragments from the observations of a source. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.machine.observations import Observation

_MAX_GAP_SECONDS = 60.0


class FragmentRecorder:
    """Collects the idle fragments that a source observes. Second 0 is the time of the first observation.

    A fragment ends with the first observation without it. If the source was silent for more than a minute before that,
    it ends with the last observation that had it, since it is not known what happened in between.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._last = 0.0
        self._open: dict[str, float] = {}
        self._ended: list[Fragment] = []
        self._names: set[str] = set()

    @property
    def idle(self) -> int:
        """Number of nodes that were idle in the last observation."""
        return len(self._open)

    @property
    def known(self) -> int:
        """Number of nodes in all observations."""
        return len(self._names)

    def observe(self, observation: Observation) -> None:
        """Take over an observation; stale ones are ignored."""
        if observation.stale:
            return
        now, idle = observation.time, observation.idle
        if self._begin is None:
            self._begin = self._last = now
        now = max(now, self._last)
        end = now if now - self._last <= _MAX_GAP_SECONDS else self._last
        for name, since in list(self._open.items()):
            if name not in idle or idle[name] > since:
                self._close(name, end)
        for name, since in idle.items():
            self._open.setdefault(name, since)
        self._names.update(idle, observation.known)
        self._last = now

    def trace(self) -> Trace | None:
        """What was recorded up to the last observation; None before any time has passed."""
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
        # A node that was idle at the first observation counts from there on: since when it was idle is not known.
        since = max(0.0, round(self._open[name] - begin, 3))
        until = round(end - begin, 3)
        return Fragment(name, since, until) if until > since else None
