"""Learning from a source how long its idle nodes stay, as it goes along."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from malletrain.scavenger.survival import SurvivalCurve, fit

KEPT_FRAGMENTS = 10_000
_REFIT_SHARE = 0.02
_REFIT_SECONDS = 30.0


class StayEstimator:
    """Collects the fragments that a source has shown, and nothing of what is still to come.

    The curve is fitted anew when the fragments seen since the last fit are 2 % of all or 30 s have passed, from the
    newest 10,000 ended fragments and the ages of those that go on.
    """

    def __init__(self, past_lengths: Iterable[float] = (), *, horizon_seconds: float) -> None:
        """Begin with what is known already.

        Args:
            past_lengths: Seconds that earlier fragments lasted, oldest first.
            horizon_seconds: How far expected stays look ahead; the largest that is given out.
        """
        self._lengths: deque[float] = deque((length for length in past_lengths if length > 0), maxlen=KEPT_FRAGMENTS)
        self._horizon = horizon_seconds
        self._idle: dict[str, float] = {}
        self._curve: SurvivalCurve | None = None
        self._fitted_at = float("-inf")
        self._new = 0

    def observe(self, time: float, idle: Mapping[str, float]) -> None:
        """Take over a picture of the source: fragments that are no longer in it have ended.

        Args:
            time: When the picture came to be, in seconds since the epoch.
            idle: Each idle node with the time since when, in seconds since the epoch.
        """
        for name, since in self._idle.items():
            if name not in idle or idle[name] > since:
                self._ended(min(time, idle.get(name, time)) - since)
        self._idle = dict(idle)

    def expected_stay(self, now: float, idle_since: float) -> float:
        """Expected further stay, in seconds, of a node idle since then; 0 where nothing is known yet."""
        self._refit(now)
        if self._curve is None:
            return 0.0
        return self._curve.expected_stay(max(0.0, now - idle_since), self._horizon)

    def _ended(self, length: float) -> None:
        if length > 0:
            self._lengths.append(length)
            self._new += 1

    def _refit(self, now: float) -> None:
        enough = self._new > _REFIT_SHARE * len(self._lengths)
        if not enough and 0 <= now - self._fitted_at < _REFIT_SECONDS:
            return
        if not self._lengths:
            # Nothing has ever left: how long nodes stay is not known.
            return
        ages = [now - since for since in self._idle.values() if since < now]
        self._curve = fit(tuple(self._lengths), ages)
        self._fitted_at = now
        self._new = 0
