"""Names in certificates: each certificate bears the role of its process as a DNS name."""

from __future__ import annotations

import re
from dataclasses import dataclass

DOMAIN = "malletrain.internal"
"""Names end in this. `.internal` is reserved for private use, so nobody else's server has such a name."""

SERVICE_ROLES = ("scavenger", "allocator", "job_manager", "monitor", "profiler")
_JOB = "job"
_JOB_NAME = re.compile(rf"([a-z0-9]{{1,63}})\.u([1-9][0-9]{{0,9}})\.{_JOB}\.{re.escape(DOMAIN)}")
ROLES = (*SERVICE_ROLES, "supervisor", "agent")
"""The processes that have certificates."""


@dataclass(frozen=True)
class PeerJob:
    """What the certificate of a job's supervisor says beside its role.

    Attributes:
        job_id: The job.
        user_id: Number of the user as whom its processes run; 0 if the name makes no sense, and nothing may run.
    """

    job_id: str
    user_id: int


def name_of(role: str) -> str:
    """The DNS name of a role, e.g. `agent.malletrain.internal`."""
    return f"{role}.{DOMAIN}"


def job_name(job_id: str, user_id: int) -> str:
    """The further name of a supervisor that runs as its job's owner, e.g. `j000007.u1000.job.malletrain.internal`."""
    return f"{job_id}.u{user_id}.{_JOB}.{DOMAIN}"


def feed_name(fleet_id: str) -> str:
    """The name in the certificates of a fleet's members, e.g. `f000012.feed.malletrain.internal`; it is of no role."""
    return f"{fleet_id}.feed.{DOMAIN}"


def job_of(name: str) -> PeerJob | None:
    """The job and the user of such a name; None for other names. One that ends like it and is not has no user, 0."""
    if not name.endswith(f".{_JOB}.{DOMAIN}"):
        return None
    found = _JOB_NAME.fullmatch(name)
    return PeerJob("", 0) if found is None else PeerJob(found[1], int(found[2]))


def role_of(name: str) -> str | None:
    """The role of a DNS name; None for names that are not of this form."""
    role, _, domain = name.partition(".")
    return role if domain == DOMAIN and role in ROLES else None
