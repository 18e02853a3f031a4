"""Quarantine of nodes on which work keeps failing. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from malletrain.common.backoff import pause_after

_MAX_CHECKS = 31
"""Failed checks of a node in a row from which on they are no longer counted."""


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """When a node is quarantined.

    Attributes:
        failures: Score at which a node is quarantined. A new failure adds 1.
        half_life_seconds: Time in which the score halves.
        longest_seconds: Longest quarantine.
        check_seconds: How long a node is left out that has failed its check for the first time; doubles each time.
        longest_check_seconds: The longest such time.
    """

    failures: float = 3.0
    half_life_seconds: float = 1800.0
    longest_seconds: float = 24 * 3600.0
    check_seconds: float = 60.0
    longest_check_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class NodeFailureRecord:
    """Failures of work on a node.

    Attributes:
        score: Number of failures, each halved with every half-life that has passed, as of `at`.
        at: Time of the last failure, in seconds since the epoch.
        until: When the quarantine ends, in seconds since the epoch; 0 if there never was one.
        failures: Number of all failures.
        reason: Why the last one happened, for people.
        by: Whose work it was, for people.
        checks: How many checks of the node have failed, lately.
    """

    score: float
    at: float
    until: float = 0.0
    failures: int = 0
    reason: str = ""
    by: str = ""
    checks: int = 0

    def score_at(self, now: float, half_life_seconds: float) -> float:
        """The score at `now`, in seconds since the epoch."""
        return self.score * math.exp2(-max(0.0, now - self.at) / half_life_seconds)


@dataclass
class Quarantine:
    """Counts failures per node with exponential decay. A quarantine ends when the score is down to half the limit.

    A node that fails again soon after that still has most of its score. Its next quarantine comes at once and is
    longer, up to the longest.

    Attributes:
        policy: When a node is quarantined.
        _records: What was known before a restart, see `read_records`, and what has come since.
    """

    policy: QuarantinePolicy
    _records: dict[str, NodeFailureRecord] = field(default_factory=dict)

    def failed(self, name: str, now: float, reason: str = "", by: str = "") -> float:
        """Work has failed on a node.

        Args:
            name: The node.
            now: The time.
            reason: What happened, for people.
            by: Whose work it was, for people.

        Returns:
            For how many seconds the node is quarantined from now on; 0: it is not.
        """
        policy = self.policy
        before = self._records.get(name, NodeFailureRecord(0.0, now))
        score = before.score_at(now, policy.half_life_seconds) + 1.0
        seconds = 0.0
        # Failures do not come at one instant: by the last one, the score of the others has decayed a little.
        if score > policy.failures - 0.5:
            release = policy.failures / 2.0
            seconds = min(policy.longest_seconds, policy.half_life_seconds * max(0.0, math.log2(score / release)))
        until = max(before.until, now + seconds) if seconds else before.until
        self._records[name] = NodeFailureRecord(score, now, until, before.failures + 1, reason, by, before.checks)
        self._forget(now)
        return max(0.0, until - now)

    def check_failed(self, name: str, now: float, reason: str, by: str) -> float:
        """A node has failed its check. That says nothing of work there: the score stays.

        Args:
            name: The node.
            now: The time.
            reason: What is wrong, for people.
            by: Who says so, for people.

        Returns:
            For how many seconds the node is quarantined from now on.
        """
        policy = self.policy
        before = self._records.get(name, NodeFailureRecord(0.0, now))
        checks = min(before.checks + 1, _MAX_CHECKS)
        seconds = pause_after(checks, policy.check_seconds, policy.longest_check_seconds)
        until, score = max(before.until, now + seconds), before.score_at(now, policy.half_life_seconds)
        self._records[name] = NodeFailureRecord(score, now, until, before.failures + 1, reason, by, checks)
        self._forget(now)
        return until - now

    def quarantined(self, now: float) -> dict[str, NodeFailureRecord]:
        """Quarantined nodes, by name."""
        return {name: record for name, record in sorted(self._records.items()) if record.until > now}

    def lift(self, names: Collection[str] | None, now: float) -> list[str]:
        """Forget the failures of nodes, or of all nodes with None; returns those that were quarantined."""
        lifted = [name for name in self.quarantined(now) if names is None or name in names]
        forgotten = set(self._records if names is None else names)
        self._records = {name: record for name, record in self._records.items() if name not in forgotten}
        return lifted

    def to_json(self) -> dict[str, Any]:
        """All that is known, for a state file."""
        return {name: asdict(record) for name, record in self._records.items()}

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        self._records = {
            name: replace(record, at=record.at + seconds, until=record.until + seconds if record.until else 0.0)
            for name, record in self._records.items()
        }

    def _forget(self, now: float) -> None:
        # The number of failed checks outlives the quarantine: a node that fails again soon stays out longer.
        half_life = self.policy.half_life_seconds
        self._records = {
            name: record
            for name, record in self._records.items()
            if record.until > now
            or record.score_at(now, half_life) > 0.05
            or (record.checks and record.until + half_life > now)
        }


def read_records(section: Mapping[str, Any]) -> dict[str, NodeFailureRecord]:
    """What `Quarantine.to_json` made; what makes no sense is left out."""
    records = {}
    for name, entry in section.items():
        try:
            score, at, until = (float(entry[field]) for field in ("score", "at", "until"))
            failures, reason, by = int(entry["failures"]), str(entry["reason"]), str(entry["by"])
            checks = int(entry.get("checks", 0))  # earlier versions have written none
        except (TypeError, ValueError, KeyError, OverflowError):
            continue
        if all(map(math.isfinite, (score, at, until))) and score >= 0 and checks >= 0:
            records[name] = NodeFailureRecord(score, at, until, failures, reason, by, checks)
    return records
