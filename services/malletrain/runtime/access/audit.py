"""The audit log: one line for every call that is more than a read, allowed or not. No line contains a token.

A caller that is refused can call again at no cost. A line for each would wash what was allowed out of the rotated logs.

Of refusals, and of calls that need no token, only the first of a kind have lines (`refusals`). They are in a file of
their own (`runtime/logs.py`), so that they can't wash away what was allowed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.logs import refusal_logger

INTERVAL_SECONDS = 60.0
_LINES = 8
"""Of each kind in an interval, before they are counted only."""
_KINDS = 200
"""Counted apart in an interval. Callers choose names and addresses; what is beyond counts as one kind."""


class RefusalKind(NamedTuple):
    """What refusals have in common.

    Attributes:
        who: The user, or the address of whom nobody knows.
        method: Full name of the method.
        reason: Why they were refused.
    """

    who: str
    method: str
    reason: str


OTHERS = RefusalKind("others", "", "too many kinds of refusals to count them apart")


class Refusals:
    """Counts refusals of an interval, which begins with its first one."""

    def __init__(self, report: Callable[[RefusalKind, int], None], seconds: float = INTERVAL_SECONDS) -> None:
        """
        Args:
            report: Called at the end of an interval with each kind that had more than a few, and how many of these
                had no line.
            seconds: How long an interval lasts.
        """
        self._report = report
        self._seconds = seconds
        self._counts: Counter[RefusalKind] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def count_refusal(self, kind: RefusalKind) -> bool:
        """Count a refusal; whether it gets a line of its own."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.end()
            self._loop = loop
            loop.call_later(self._seconds, self.end)
        counted = kind if kind in self._counts or len(self._counts) < _KINDS else OTHERS
        self._counts[counted] += 1
        return self._counts[counted] <= _LINES

    def end(self) -> None:
        """End the interval: report what had no line."""
        counts, self._counts, self._loop = self._counts, Counter(), None
        for kind, count in counts.items():
            if count > _LINES:
                self._report(kind, count - _LINES)


_LOGGER = "malletrain.audit"
_MAX_JOB_ID_LENGTH = 64
_MAX_REASON_LENGTH = 300


def audit(method: str, identity: Identity | None, request: Any, peer: str, refused: str = "") -> None:
    """Write a line.

    Args:
        method: Full name of the method.
        identity: The caller; None if it is not known.
        request: The request, which may name a job; None for a stream of requests.
        peer: Address of the caller.
        refused: Why the call was refused; empty if it was allowed.
    """
    # Whoever needs no token costs nothing either, whether allowed or not.
    costs_nothing = bool(refused) or identity is None
    # Without the port: whoever calls again has another one.
    who = identity.user if identity else peer.rpartition(":")[0]
    if costs_nothing and not REFUSALS.count_refusal(RefusalKind(who, method, refused[:_MAX_REASON_LENGTH])):
        return
    log = refusal_logger(_LOGGER) if costs_nothing else structlog.get_logger(_LOGGER)
    log.info(
        "audit",
        method=method,
        user=identity.user if identity else "",
        role=identity.role.value if identity else "",
        token_id=identity.token_id if identity else "",
        job=_job_of(identity, request),
        peer=peer,
        allowed=not refused,
        **({"reason": refused} if refused else {}),
    )


def _report(kind: RefusalKind, count: int) -> None:
    refusal_logger(_LOGGER).info(
        "audit of many calls",
        who=kind.who,
        method=kind.method,
        reason=kind.reason,
        more_calls=count,
        allowed=not kind.reason,
    )


REFUSALS = Refusals(_report)


def _job_of(identity: Identity | None, request: Any) -> str:
    if identity is not None and identity.role is Role.JOB:
        return identity.job_id
    named = getattr(request, "job_id", "")
    return named[:_MAX_JOB_ID_LENGTH] if isinstance(named, str) else ""
