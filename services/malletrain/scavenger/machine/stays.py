"""Learns from the observations of a source how long idle nodes stay, and tells what has changed of that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from malletrain.model.survival_curve import SurvivalCurve
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts, Observation

KEPT_FRAGMENTS = 10_000
_REFIT_SHARE = 0.02
_REFIT_SECONDS = 30.0
MIN_AT_RISK = 10
"""A step of the curve is used only if so many fragments are still under observation there."""


@dataclass
class LearnedStay:
    """The survival curve of the newest 10,000 fragments that have ended, fitted again from time to time.

    Attributes:
        past_lengths: Lengths of earlier fragments in seconds, oldest first.
        horizon_seconds: How far expected stays look ahead; also the largest expected stay.
        curve: The curve; None before the first.
        fits: How often it has been fitted.
        refit_share: The curve is fitted again when more than this share of the fragments is new.
        refit_seconds: It is also fitted again after so many seconds.
    """

    past_lengths: InitVar[Iterable[float]] = ()
    horizon_seconds: float = field(kw_only=True)
    refit_share: float = field(default=_REFIT_SHARE, kw_only=True)
    refit_seconds: float = field(default=_REFIT_SECONDS, kw_only=True)
    curve: SurvivalCurve | None = field(init=False, default=None)
    fits: int = field(init=False, default=0)
    _lengths: list[float] = field(init=False)
    _fitted_at: float = field(init=False, default=float("-inf"))
    _new: int = field(init=False, default=0)

    def __post_init__(self, past_lengths: Iterable[float]) -> None:
        self._lengths = [length for length in past_lengths if length > 0][-KEPT_FRAGMENTS:]

    def learn(self, length: float) -> None:
        """Learn from a fragment that lasted `length` seconds."""
        if length > 0:
            if len(self._lengths) == 2 * KEPT_FRAGMENTS:  # one by one, each would move all others
                del self._lengths[:KEPT_FRAGMENTS]
            self._lengths.append(length)
            self._new += 1

    def refit(self, now: float, idle_since: Iterable[float]) -> None:
        """Fit the curve if that is due.

        Args:
            now: Seconds since the epoch.
            idle_since: When the fragments began that have not ended, in seconds since the epoch.
        """
        if not self._due(now) or not self._lengths:
            # Without a fragment that has ended, nothing is known of their lengths.
            return
        self.curve = fit(tuple(self._lengths[-KEPT_FRAGMENTS:]), [now - since for since in idle_since if since < now])
        self.fits += 1
        self._fitted_at = now
        self._new = 0

    def expected_stay(self, age: float, known_end: float | None = None) -> float:
        """Expected further stay, in seconds, of a node idle for `age` seconds; 0 where nothing is known yet.

        Args:
            age: Idle age in seconds.
            known_end: In how many seconds its idleness ends at the latest, where the scheduler says. Planned starts
                come earlier when other jobs end early, and unplanned jobs come in between. The curve is therefore
                still used, up to this time. Without a curve, this time itself is the result.
        """
        horizon = self.horizon_seconds if known_end is None else min(known_end, self.horizon_seconds)
        if horizon <= 0:
            return 0.0
        if self.curve is None:
            return 0.0 if known_end is None else horizon
        return self.curve.expected_stay(max(0.0, age), horizon)

    def _due(self, now: float) -> bool:
        lengths = min(len(self._lengths), KEPT_FRAGMENTS)
        return self._new > self.refit_share * lengths or not 0 <= now - self._fitted_at < self.refit_seconds


@dataclass
class StayEstimator:
    """Expected stays from the fragments that a source has observed so far.

    The curve is fitted again when 2 % of the fragments are new, or after 30 s.

    Attributes:
        past_lengths: As for `LearnedStay`.
        horizon_seconds: How far expected stays look ahead.
        current: What has been learned, by the curve that was fitted last.
    """

    past_lengths: InitVar[Iterable[float]] = ()
    horizon_seconds: float = field(kw_only=True)
    current: LearnedStay = field(init=False)
    _idle: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self, past_lengths: Iterable[float]) -> None:
        self.current = LearnedStay(past_lengths, horizon_seconds=self.horizon_seconds)

    def observe(self, time: float, idle: Mapping[str, float]) -> None:
        """Take over an observation: fragments that are no longer in it have ended.

        Args:
            time: Time of the observation, in seconds since the epoch.
            idle: All idle nodes, and since when each is idle, in seconds since the epoch.
        """
        newest = idle.get
        # Of thousands of nodes, few have changed: this runs at each of many events.
        changed = [(name, since) for name, since in self._idle.items() if newest(name) != since]
        for name, since in changed:
            if name not in idle or idle[name] > since:
                self.current.learn(min(time, idle.get(name, time)) - since)
        self._idle = dict(idle)

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: fragments are no longer or shorter for that."""
        self._idle = {name: since + seconds for name, since in self._idle.items()}

    def learned(self, now: float) -> LearnedStay:
        """What has been learned until `now`, in seconds since the epoch: the curve is fitted again if that is due."""
        self.current.refit(now, self._idle.values())
        return self.current

    def expected_stay(self, now: float, idle_since: float, known_end: float | None = None) -> float:
        """Expected further stay, in seconds, of a node idle since then; 0 where nothing is known yet.

        Args:
            now: Seconds since the epoch.
            idle_since: The same.
            known_end: When its idleness ends at the latest, in seconds since the epoch, where the scheduler says.
        """
        return self.learned(now).expected_stay(now - idle_since, None if known_end is None else known_end - now)


@dataclass(frozen=True, slots=True)
class StayingNode:
    """An idle node with the times from which its expected stay follows.

    Attributes:
        since: When its fragment began, in seconds since the epoch.
        until: When its idleness ends at the latest, in seconds since the epoch; None where that is not known.
        facts: What it is.
    """

    name: str
    since: float
    until: float | None
    facts: NodeFacts


@dataclass(frozen=True)
class StayNews:
    """What one reader does not know yet.

    Attributes:
        token: By which it says what it knows.
        horizon_seconds: How far stays look ahead.
        same_curve: Whether it knows the curve.
        curve: The curve; None where it knows it, or there is none.
        complete: Whether `nodes` are all.
        nodes: Nodes of which something has changed.
    """

    token: str
    horizon_seconds: float
    same_curve: bool
    curve: SurvivalCurve | None
    complete: bool
    nodes: tuple[StayingNode, ...]


class StayChanges:
    """Numbers the changes of idle nodes: ten thousand are compared in some milliseconds, and few are ever told."""

    def __init__(self, life: str) -> None:
        """
        Args:
            life: Names this life of the service: tokens of earlier ones are not known.
        """
        self._life = life
        self._number = 0
        self._nodes: dict[str, StayingNode] = {}
        self._changed: dict[str, int] = {}

    def news(self, known: str, since: Mapping[str, float], newest: Observation, learned: LearnedStay) -> StayNews:
        """What a reader does not know yet.

        Args:
            known: Token that it has got last; empty or unknown: it knows nothing.
            since: The nodes that count as idle, and when the fragment of each began.
            newest: What the source told last.
            learned: What has been learned of stays.
        """
        self._look(since, newest)
        fits, number = self._known(known)
        same_curve = fits == learned.fits
        return StayNews(
            f"{self._life}:{learned.fits}:{self._number}",
            learned.horizon_seconds,
            same_curve,
            None if same_curve else learned.curve,
            number < 0,
            tuple(self._nodes[name] for name, changed in self._changed.items() if changed > number),
        )

    def _look(self, since: Mapping[str, float], newest: Observation) -> None:
        ends, facts, nodes = newest.ends, newest.facts, self._nodes
        number = self._number + 1
        for name, began in since.items():
            node = nodes.get(name)
            end, about = ends.get(name), facts.get(name, NO_FACTS)
            if node is None or node.since != began or node.until != end or node.facts != about:
                nodes[name] = StayingNode(name, began, end, about)
                self._changed[name] = self._number = number
        if len(nodes) > len(since):
            for name in nodes.keys() - since.keys():
                del nodes[name], self._changed[name]

    def _known(self, token: str) -> tuple[int, int]:
        """Numbers of the fit and of the change that a reader knows; -1 each where it knows nothing of this life."""
        life, _, numbers = token.partition(":")
        fits, _, number = numbers.partition(":")
        if life != self._life or not fits.isdecimal() or not number.isdecimal():
            return -1, -1
        return int(fits), int(number)


def fit(lengths: Sequence[float], censored: Sequence[float] = (), min_at_risk: int = MIN_AT_RISK) -> SurvivalCurve:
    """How long idle nodes stay: the Kaplan-Meier curve (1958) of idle fragments.

    Fragments that have ended are deaths, those that go on are censored. The hazard falls with age: the longer a node
    has been idle, the longer it is expected to stay.

    There are steps as long as at least `min_at_risk` fragments are under observation, and more than end there. After
    the last step the hazard is constant: deaths over the time observed there. With few fragments there are no steps.

    Args:
        lengths: Lengths in seconds of the fragments that have ended.
        censored: Lengths in seconds, so far, of the fragments that go on.
        min_at_risk: See above, at least 1.

    Raises:
        ValueError: there is no fragment at all, or none has lasted any time.
    """
    deaths = np.sort(np.asarray(lengths, dtype=np.float64))
    everyone = np.sort(np.concatenate((deaths, np.asarray(censored, dtype=np.float64))))
    if not everyone.size or everyone[-1] <= 0:
        raise ValueError("fragments: expected at least one that has lasted some time")
    times, ended = np.unique(deaths, return_counts=True)
    at_risk = everyone.size - np.searchsorted(everyone, times, side="left")
    believed = int(np.argmin(np.append((at_risk >= min_at_risk) & (at_risk > ended), False)))
    steps = np.concatenate(([0.0], times[:believed]))
    survival = np.concatenate(([1.0], np.cumprod(1.0 - ended[:believed] / at_risk[:believed])))
    tail_deaths = deaths.size - int(ended[:believed].sum())
    tail_seconds = float(np.clip(everyone - steps[-1], 0.0, None).sum())
    tail_rate = _tail_rate(tail_deaths, tail_seconds, float(steps[-1]), float(survival[-1]))
    return SurvivalCurve.of_steps(steps.tolist(), survival.tolist(), tail_rate)


def _tail_rate(deaths: int, seconds: float, start: float, survival: float) -> float:
    """Hazard of the tail per second. At least one death is assumed, so that no expected stay is infinite."""
    if seconds > 0:
        return max(deaths, 1) / seconds
    # All fragments that outlived the last step were censored at it. The mean hazard up to there is used.
    return -math.log(survival) / start
