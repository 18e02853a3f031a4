"""The audit log: one line for every call that is more than a read, allowed or not. No line contains a token."""

from __future__ import annotations

from typing import Any

import structlog

from malletrain.runtime.access.identity import Identity, Role

_LONGEST_JOB_ID = 64


def audit(method: str, identity: Identity | None, request: Any, peer: str, refused: str = "") -> None:
    """Write a line.

    Args:
        method: Full name of the method.
        identity: The caller; None if it is not known.
        request: The request, which may name a job; None for a stream of requests.
        peer: Address of the caller.
        refused: Why the call was refused; empty if it was allowed.
    """
    structlog.get_logger("malletrain.audit").info(
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


def _job_of(identity: Identity | None, request: Any) -> str:
    if identity is not None and identity.role is Role.JOB:
        return identity.job_id
    named = getattr(request, "job_id", "")
    return named[:_LONGEST_JOB_ID] if isinstance(named, str) else ""
