"""Names in certificates: each certificate bears the role of its process as a DNS name."""

from __future__ import annotations

DOMAIN = "malletrain.internal"
"""Names end in this. `.internal` is reserved for private use, so nobody else's server has such a name."""

SERVICE_ROLES = ("scavenger", "allocator", "job_manager", "monitor", "profiler")
ROLES = (*SERVICE_ROLES, "supervisor", "agent")
"""The processes that have certificates."""


def name_of(role: str) -> str:
    """The DNS name of a role, e.g. `agent.malletrain.internal`."""
    return f"{role}.{DOMAIN}"


def role_of(name: str) -> str | None:
    """The role of a DNS name; None for names that are not of this form."""
    role, _, domain = name.partition(".")
    return role if domain == DOMAIN and role in ROLES else None
