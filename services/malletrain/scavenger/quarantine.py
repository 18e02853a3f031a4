"""Nodes on which work keeps failing are left alone for a while. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """When a node is left alone.

    Attributes:
        failures: So many failures at once lead to a quarantine.
        half_life_seconds: After so long a failure counts half.
        longest_seconds: Longest quarantine.
    """

    failures: float = 3.0
    half_life_seconds: float = 1800.0
    longest_seconds: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Record:
    """What is held against a node.

    Attributes:
        score: Failures, each halved with every half-life since, as of `at`.
        at: When that was, in seconds since the epoch.
        until: When its quarantine ends; 0 where it never was in one.
        failures: Failures ever.
        reason: Why the last one happened; for people.
    """

    score: float
    at: float
    until: float = 0.0
    failures: int = 0
    reason: str = ""

    def score_at(self, now: float, half_life_seconds: float) -> float:
        """The score as of `now`."""
        return self.score * math.exp2(-max(0.0, now - self.at) / half_life_seconds)


class Quarantine:
    """Counts failures per node. Each one fades; the node comes back when half of what led to it has faded.

    A node that fails again soon after has most of its score left, so that its next quarantine comes at once and is
    longer: up to the longest.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._records: dict[str, Record] = {}

    def failed(self, name: str, now: float, reason: str = "") -> float:
        """Work has failed on a node; for how many seconds it is to be left alone from now on, 0 for not at all."""
        rules = self._rules
        before = self._records.get(name, Record(0.0, now))
        score = before.score_at(now, rules.half_life_seconds) + 1.0
        seconds = 0.0
        # A score that has faded by a trifle since the failures before still counts as reached.
        if score > rules.failures - 0.5:
            release = rules.failures / 2.0
            seconds = min(rules.longest_seconds, rules.half_life_seconds * max(0.0, math.log2(score / release)))
        until = max(before.until, now + seconds) if seconds else before.until
        self._records[name] = Record(score, now, until, before.failures + 1, reason)
        self._forget(now)
        return max(0.0, until - now)

    def quarantined(self, now: float) -> dict[str, Record]:
        """The nodes that are left alone, by name."""
        return {name: record for name, record in sorted(self._records.items()) if record.until > now}

    def _forget(self, now: float) -> None:
        kept = self._rules.half_life_seconds
        self._records = {
            name: record
            for name, record in self._records.items()
            if record.until > now or record.score_at(now, kept) > 0.05
        }
