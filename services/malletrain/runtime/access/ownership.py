"""What the owner of a job may do with it and others may not. Pure."""

from __future__ import annotations

from malletrain.runtime.access.identity import HUMAN_ROLES, Identity, PermissionDeniedError, Role


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
