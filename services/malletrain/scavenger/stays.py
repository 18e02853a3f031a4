"""Learning from a source how long its idle nodes stay, as it goes along."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from malletrain.scavenger.survival import SurvivalCurve, fit

KEPT_FRAGMENTS = 10_000
_REFIT_SHARE = 0.02
_REFIT_SECONDS = 30.0


class LearnedStay:
    """The survival curve of the fragments that have ended, fitted anew from time to time from the newest 10,000."""

    def __init__(
        self,
        past_lengths: Iterable[float] = (),
        *,
        horizon_seconds: float,
        refit_share: float = _REFIT_SHARE,
        refit_seconds: float = _REFIT_SECONDS,
    ) -> None:
        """Begin with what is known already.

        Args:
            past_lengths: Seconds that earlier fragments lasted, oldest first.
            horizon_seconds: How far expected stays look ahead; the largest that is given out.
            refit_share: The curve is fitted anew when more fragments than this share of all are new,
            refit_seconds: or when so many seconds have passed.
        """
        self._lengths: deque[float] = deque((length for length in past_lengths if length > 0), maxlen=KEPT_FRAGMENTS)
        self._horizon = horizon_seconds
        self._share = refit_share
        self._seconds = refit_seconds
        self._curve: SurvivalCurve | None = None
        self._fitted_at = float("-inf")
        self._new = 0

    def ended(self, length: float) -> None:
        """Learn from a fragment that lasted `length` seconds."""
        if length > 0:
            self._lengths.append(length)
            self._new += 1

    def refit(self, now: float, idle_since: Iterable[float]) -> None:
        """Fit the curve if it is time; `idle_since` are the beginnings of the fragments that go on."""
        if not self._due(now) or not self._lengths:
            # Where nothing has ever left, how long nodes stay is not known.
            return
        self._curve = fit(tuple(self._lengths), [now - since for since in idle_since if since < now])
        self._fitted_at = now
        self._new = 0

    def expected_stay(self, age: float, known_end: float | None = None) -> float:
        """Expected further stay, in seconds, of a node idle for `age` seconds; 0 where nothing is known yet.

        Args:
            age: Idle age in seconds.
            known_end: In how many seconds its idleness ends at the latest, where the scheduler says. Planned starts
                come early when other jobs end early, and unplanned jobs come in between: so it bounds how far the
                curve looks, rather than taking its place. Without a curve it is all that is known.
        """
        horizon = self._horizon if known_end is None else min(known_end, self._horizon)
        if horizon <= 0:
            return 0.0
        if self._curve is None:
            return 0.0 if known_end is None else horizon
        return self._curve.expected_stay(max(0.0, age), horizon)

    def _due(self, now: float) -> bool:
        return self._new > self._share * len(self._lengths) or not 0 <= now - self._fitted_at < self._seconds


class StayEstimator:
    """Collects the fragments that a source has shown, and nothing of what is still to come.

    The curve is fitted anew when the fragments seen since the last fit are 2 % of all or 30 s have passed.
    """

    def __init__(self, past_lengths: Iterable[float] = (), *, horizon_seconds: float) -> None:
        """Begin with what is known already; arguments as for `LearnedStay`."""
        self._learned = LearnedStay(past_lengths, horizon_seconds=horizon_seconds)
        self._idle: dict[str, float] = {}

    def observe(self, time: float, idle: Mapping[str, float]) -> None:
        """Take over a picture of the source: fragments that are no longer in it have ended.

        Args:
            time: When the picture came to be, in seconds since the epoch.
            idle: Each idle node with the time since when, in seconds since the epoch.
        """
        for name, since in self._idle.items():
            if name not in idle or idle[name] > since:
                self._learned.ended(min(time, idle.get(name, time)) - since)
        self._idle = dict(idle)

    def expected_stay(self, now: float, idle_since: float, known_end: float | None = None) -> float:
        """Expected further stay, in seconds, of a node idle since then; 0 where nothing is known yet.

        Args:
            now: Seconds since the epoch.
            idle_since: The same.
            known_end: When its idleness ends at the latest, in seconds since the epoch, where the scheduler says.
        """
        self._learned.refit(now, self._idle.values())
        return self._learned.expected_stay(now - idle_since, None if known_end is None else known_end - now)
