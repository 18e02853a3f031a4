"""How fast members that train at the same time advance, by who preprocesses their samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from malletrain.fleet.problem import FleetProblem, Pace

NEAR_SAMPLES = 2048.0
"""Members share samples of a feed while their positions are not further apart than what it keeps (docs/feed.md)."""
LEFT_BEHIND = 0.5
"""Nobody waits for a member with less than this share of the pace of the others (docs/feed.md)."""


class Sharing(StrEnum):
    """Which members of a fleet share preprocessing.

    `FLOTILLA`: all members share, whatever their positions, as published. `FEED`: those at about the same position
    share, as live. `ALONE`: each member for itself.
    """

    FLOTILLA = "flotilla"
    FEED = "feed"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What preprocessing makes of the rates of members that train at the same time.

    Attributes:
        rate: Samples/s that all CPUs together preprocess; infinite where there is no limit.
        pace: How members that share advance.
        sharing: Who preprocesses.
    """

    rate: float
    pace: Pace
    sharing: Sharing

    @property
    def in_lockstep(self) -> bool:
        """Whether members wait for each other."""
        return self.sharing is not Sharing.ALONE and self.pace is Pace.LOCKSTEP

    def paces(self, rates: Mapping[int, float], positions: Mapping[int, float] | None = None) -> dict[int, float]:
        """Samples/s at which members advance.

        Args:
            rates: What each could do alone, in samples/s; at least one member.
            positions: Samples that each has trained on; None: all are at one position.
        """
        if self.sharing is Sharing.ALONE:
            return unshared_rates(rates, self.rate)
        if self.pace is Pace.OWN:
            return {member: min(rate, self.rate) for member, rate in rates.items()}
        if self.sharing is Sharing.FLOTILLA:
            return dict.fromkeys(rates, min(*rates.values(), self.rate))
        cohorts = _cohorts(rates, positions or dict.fromkeys(rates, 0.0))
        slowest = [min(rates[member] for member in cohort) for cohort in cohorts]
        share = min(1.0, self.rate / sum(slowest))
        paces = {m: pace * share for cohort, pace in zip(cohorts, slowest, strict=True) for m in cohort}
        return {member: paces[member] for member in rates}


def of_flotillas(problem: FleetProblem) -> Preprocessing:
    """What preprocessing makes of the rates of a flotilla, which shares where nothing is said."""
    return of_terms(problem.feed, problem.pace, problem.shared, otherwise=Sharing.FLOTILLA)


def of_others(problem: FleetProblem) -> Preprocessing:
    """What it makes of those of other members, each of which preprocesses for itself where nothing is said."""
    return of_terms(problem.feed, problem.pace, problem.shared, otherwise=Sharing.ALONE)


def of_terms(rate: float, pace: Pace, shared: bool | None, otherwise: Sharing) -> Preprocessing:
    """What preprocessing makes of rates.

    Args:
        rate: Samples/s that all CPUs together preprocess; infinite where there is no limit.
        pace: How members that share advance.
        shared: Whether members have a feed; None: nothing is said.
        otherwise: Who preprocesses where nothing is said.
    """
    sharing = otherwise if shared is None else Sharing.FEED if shared else Sharing.ALONE
    return Preprocessing(rate, pace, sharing)


def unshared_rates(rates: Mapping[int, float], feed: float) -> dict[int, float]:
    """Samples/s of members that preprocess each for itself, where all CPUs together preprocess `feed` samples/s."""
    share = min(1.0, feed / sum(rates.values()))
    return {member: rate * share for member, rate in rates.items()}


def _cohorts(rates: Mapping[int, float], positions: Mapping[int, float]) -> list[list[int]]:
    """Members that share: near each other, and none with less than half the pace of the others."""
    cohorts: list[list[int]] = []
    for near in _runs(positions, lambda before, after: after - before > NEAR_SAMPLES):
        alike = {member: rates[member] for member in near}
        cohorts += _runs(alike, lambda before, after: before < LEFT_BEHIND * after)
    return cohorts


def _runs(values: Mapping[int, float], is_cut: Callable[[float, float], bool]) -> list[list[int]]:
    """Members by value, cut between two neighbours where that is asked for."""
    groups: list[list[int]] = []
    for member in sorted(values, key=lambda name: values[name]):
        if groups and not is_cut(values[groups[-1][-1]], values[member]):
            groups[-1].append(member)
        else:
            groups.append([member])
    return groups
