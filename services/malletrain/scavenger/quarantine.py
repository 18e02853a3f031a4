"""Quarantine of nodes on which work keeps failing. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """When a node is quarantined.

    Attributes:
        failures: Score at which a node is quarantined. A new failure adds 1.
        half_life_seconds: Time in which the score halves.
        longest_seconds: Longest quarantine.
    """

    failures: float = 3.0
    half_life_seconds: float = 1800.0
    longest_seconds: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class NodeFailureRecord:
    """Failures of work on a node.

    Attributes:
        score: Number of failures, each halved with every half-life that has passed, as of `at`.
        at: Time of the last failure, in seconds since the epoch.
        until: When the quarantine ends, in seconds since the epoch; 0 if there never was one.
        failures: Number of all failures.
        reason: Why the last one happened, for people.
    """

    score: float
    at: float
    until: float = 0.0
    failures: int = 0
    reason: str = ""

    def score_at(self, now: float, half_life_seconds: float) -> float:
        """The score at `now`, in seconds since the epoch."""
        return self.score * math.exp2(-max(0.0, now - self.at) / half_life_seconds)


class Quarantine:
    """Counts failures per node with exponential decay. A quarantine ends when the score is down to half the limit.

    A node that fails again soon after that still has most of its score. Its next quarantine comes at once and is
    longer, up to the longest.
    """

    def __init__(self, policy: QuarantinePolicy) -> None:
        self._policy = policy
        self._records: dict[str, NodeFailureRecord] = {}

    def failed(self, name: str, now: float, reason: str = "") -> float:
        """Work has failed on a node.

        Returns:
            For how many seconds the node is quarantined from now on; 0: it is not.
        """
        policy = self._policy
        before = self._records.get(name, NodeFailureRecord(0.0, now))
        score = before.score_at(now, policy.half_life_seconds) + 1.0
        seconds = 0.0
        # Failures do not come at one instant: by the last one, the score of the others has decayed a little.
        if score > policy.failures - 0.5:
            release = policy.failures / 2.0
            seconds = min(policy.longest_seconds, policy.half_life_seconds * max(0.0, math.log2(score / release)))
        until = max(before.until, now + seconds) if seconds else before.until
        self._records[name] = NodeFailureRecord(score, now, until, before.failures + 1, reason)
        self._forget(now)
        return max(0.0, until - now)

    def quarantined(self, now: float) -> dict[str, NodeFailureRecord]:
        """Quarantined nodes, by name."""
        return {name: record for name, record in sorted(self._records.items()) if record.until > now}

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        self._records = {
            name: replace(record, at=record.at + seconds, until=record.until + seconds if record.until else 0.0)
            for name, record in self._records.items()
        }

    def _forget(self, now: float) -> None:
        kept = self._policy.half_life_seconds
        self._records = {
            name: record
            for name, record in self._records.items()
            if record.until > now or record.score_at(now, kept) > 0.05
        }
