"""Which calls are admitted: counted by caller, so that whoever has too many is the only one who is refused. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import LimitExceededError

_ALWAYS_ADMITTED = 16
"""Calls under way that every known caller may have, however many others have: a drain must be confirmed."""


class CallKind(StrEnum):
    """What a call takes part in."""

    KNOWN = "known"
    """A call with a valid token."""
    UNKNOWN = "unknown"
    """A call without one, of a method that needs none: health checks, and the exchange of a credential for a token."""


@dataclass(frozen=True, slots=True)
class Caller:
    """By whom calls are counted.

    Attributes:
        kind: Whether it has shown a token.
        name: For people, e.g. "ada", "job j000012", "uid 1003" or "192.0.2.7".
        bounded: Whether its calls are bounded at all: services among each other are not.
    """

    kind: CallKind
    name: str
    bounded: bool = True


def known_caller(identity: Identity) -> Caller:
    """Whoever has shown a token. All tokens of a person count as one caller."""
    if identity.role is Role.SERVICE:
        return Caller(CallKind.KNOWN, f"service {identity.user}", bounded=False)
    if identity.role is Role.JOB:
        return Caller(CallKind.KNOWN, f"job {identity.job_id}")
    return Caller(CallKind.KNOWN, identity.user)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Calls under way at most.

    Attributes:
        in_all: Of all known callers together.
        per_caller: Of each known caller.
        per_stranger: Of each peer that has shown no token; these are outside of `in_all`.
    """

    in_all: int
    per_caller: int
    per_stranger: int


class CallCounts:
    """Counts the calls that are under way."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._of: Counter[Caller] = Counter()
        self._known = 0

    def begin(self, caller: Caller) -> None:
        """Count a call.

        Raises:
            LimitExceededError: it is one too many; it is not counted.
        """
        present = self._of.get(caller, 0)
        if caller.bounded:
            self._check(caller, present)
        self._of[caller] = present + 1
        self._known += caller.kind is CallKind.KNOWN

    def end(self, caller: Caller) -> None:
        """A call that was counted has ended."""
        self._of[caller] -= 1
        if not self._of[caller]:
            del self._of[caller]
        self._known -= caller.kind is CallKind.KNOWN

    def _check(self, caller: Caller, present: int) -> None:
        if caller.kind is CallKind.UNKNOWN:
            if present >= self._limits.per_stranger:
                raise LimitExceededError(
                    f"{caller.name} has {present} calls without a token under way: at most "
                    f"{self._limits.per_stranger} (limits.max_calls_without_token); end some, or show a token"
                )
            return
        if present >= self._limits.per_caller:
            raise LimitExceededError(
                f"{caller.name} has {present} calls under way: at most {self._limits.per_caller} "
                "(limits.max_calls_per_caller); end some, and try again"
            )
        if self._known >= self._limits.in_all and present >= min(_ALWAYS_ADMITTED, self._limits.in_all):
            raise LimitExceededError(
                f"{self._known} calls are under way: at most {self._limits.in_all} (limits.max_calls); try again"
            )
