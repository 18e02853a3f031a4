"""Who a caller is, and what the owner of a job may do with it. Pure, but for the variable that holds the caller."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from malletrain.runtime.errors import MalleTrainError


class Role(StrEnum):
    """What a caller may do; as in access.proto."""

    ANYBODY = "anybody"
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    SERVICE = "service"
    JOB = "job"
    SUPERVISOR = "supervisor"
    AGENT = "agent"


HUMAN_ROLES = (Role.VIEWER, Role.USER, Role.OPERATOR)
"""Roles of people, each of which includes those before it."""
CERTIFICATE_ROLES = (Role.SUPERVISOR, Role.AGENT)
"""Roles that a certificate gives, and no token."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a method, by a verified token.

    Attributes:
        user: Name of the user or the service; the job identifier of a job's trainer.
        role: What it may do.
        token_id: Identifier of its token; not a secret.
        issued: When the token was issued, in seconds since the epoch.
        expires: When it expires, in seconds since the epoch.
        job_id: The job of a trainer; empty for all others.
        audience: The service that the token of a service is good for; empty for all others.
    """

    user: str
    role: Role
    token_id: str
    issued: float
    expires: float
    job_id: str = ""
    audience: str = ""


class UnauthenticatedError(MalleTrainError):
    """Nobody knows who calls; becomes UNAUTHENTICATED. The message says what to do and contains no secret."""


class PermissionDeniedError(MalleTrainError):
    """The caller is known and may not do this; becomes PERMISSION_DENIED."""


_caller: ContextVar[Identity] = ContextVar("malletrain_caller")


def set_caller(identity: Identity) -> None:
    """Note who makes the present call."""
    _caller.set(identity)


def current_caller() -> Identity:
    """The caller of the method that is being handled.

    Raises:
        UnauthenticatedError: nobody is known: the server did not check the call.
    """
    try:
        return _caller.get()
    except LookupError:
        raise UnauthenticatedError("the caller is not known") from None


def require_job(identity: Identity, job_id: str) -> None:
    """Refuse a trainer that speaks for another job than its own.

    Raises:
        PermissionDeniedError: it does.
    """
    if identity.role is Role.JOB and identity.job_id != job_id:
        raise PermissionDeniedError(f"the token is that of job {identity.job_id}: it may not speak for job {job_id!r}")


def owns(identity: Identity, owner: str) -> bool:
    """Whether a caller has all rights of a job's owner: the owner, whatever the role, operators and services.

    Args:
        identity: The caller.
        owner: Name of the user who submitted the job.
    """
    if identity.role in (Role.OPERATOR, Role.SERVICE):
        return True
    return identity.role in HUMAN_ROLES and identity.user == owner


def require_owner(identity: Identity, owner: str, job_id: str, action: str) -> None:
    """Refuse a caller who does not have the rights of a job's owner.

    Args:
        identity: The caller.
        owner: Name of the user who submitted the job.
        job_id: The job.
        action: What is refused, such as "cancel it".

    Raises:
        PermissionDeniedError: the caller does not have them.
    """
    if not owns(identity, owner):
        raise PermissionDeniedError(
            f"job {job_id} belongs to {owner or 'nobody'}: only its owner and operators may {action}, "
            f"and {identity.user} has the role {identity.role}"
        )
