"""The audit log: one line for every call that is more than a read, allowed or not. No line contains a token.

Of refusals, and of calls that need no token, only the first of a kind have lines (`refusals`). They are in a file of
their own (`runtime/refusal_log.py`), so that they can't wash away what was allowed.
"""

from __future__ import annotations

from typing import Any

import structlog

from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.access.refusals import RefusalKind, Refusals
from malletrain.runtime.refusal_log import refusal_logger

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
    if costs_nothing and not _REFUSALS.note(RefusalKind(_who(identity, peer), method, refused[:_MAX_REASON_LENGTH])):
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


def _who(identity: Identity | None, peer: str) -> str:
    """By whom refusals are counted: whoever calls again has another port."""
    return identity.user if identity else peer.rpartition(":")[0]


def _report(kind: RefusalKind, count: int) -> None:
    refusal_logger(_LOGGER).info(
        "audit of many calls",
        who=kind.who,
        method=kind.method,
        reason=kind.reason,
        more_calls=count,
        allowed=not kind.reason,
    )


_REFUSALS = Refusals(_report)


def _job_of(identity: Identity | None, request: Any) -> str:
    if identity is not None and identity.role is Role.JOB:
        return identity.job_id
    named = getattr(request, "job_id", "")
    return named[:_MAX_JOB_ID_LENGTH] if isinstance(named, str) else ""
