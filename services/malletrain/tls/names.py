"""Names in certificates: each certificate bears the role of its process as a DNS name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

DOMAIN = "malletrain.internal"
"""Names end in this. `.internal` is reserved for private use, so nobody else's server has such a name."""

SERVICE_ROLES = ("scavenger", "allocator", "job_manager", "monitor", "profiler")
_JOB = "job"
_JOB_NAME = re.compile(rf"([a-z0-9]{{1,63}})\.u([1-9][0-9]{{0,9}})\.{_JOB}\.{re.escape(DOMAIN)}")
_NODE, _PLACEHOLDER = "node", "placeholder"
_NODE_DIGITS = 32
_PLACEHOLDER_NAME = re.compile(rf"p([1-9][0-9]{{0,18}})\.{_PLACEHOLDER}\.{re.escape(DOMAIN)}")
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


@dataclass(frozen=True)
class PeerNode:
    """What the certificate of a node's agent says beside its role.

    Attributes:
        name: The name that `node_name` makes of the node's; empty if the certificate names several, and is of none.
        placeholder: Number of the placeholder that it was made for; None: it was made by an operator.
    """

    name: str
    placeholder: int | None = None


def name_of(role: str) -> str:
    """The DNS name of a role, e.g. `agent.malletrain.internal`."""
    return f"{role}.{DOMAIN}"


def job_name(job_id: str, user_id: int) -> str:
    """The further name of a supervisor that runs as its job's owner, e.g. `j000007.u1000.job.malletrain.internal`."""
    return f"{job_id}.u{user_id}.{_JOB}.{DOMAIN}"


def feed_name(fleet_id: str) -> str:
    """The name in the certificates of a fleet's members, e.g. `f000012.feed.malletrain.internal`; it is of no role."""
    return f"{fleet_id}.feed.{DOMAIN}"


def node_name(node: str) -> str:
    """The further name of the agent of a node, e.g. `4b68ab3847feda7d6c62c1fbcbeebfa3.node.malletrain.internal`.

    It is a digest, since names of nodes are not always parts of DNS names, in which upper case counts as lower case.
    """
    return f"{hashlib.sha256(node.encode()).hexdigest()[:_NODE_DIGITS]}.{_NODE}.{DOMAIN}"


def placeholder_name(number: int) -> str:
    """The further name of the agent of a placeholder, e.g. `p1795645123421.placeholder.malletrain.internal`.

    Args:
        number: At least 1, and higher than those of earlier placeholders.
    """
    return f"p{number}.{_PLACEHOLDER}.{DOMAIN}"


def node_of(names: Iterable[str]) -> PeerNode | None:
    """The node and the placeholder of a certificate's names; None if it names no node."""
    unique = set(names)
    nodes = [name for name in unique if name.endswith(f".{_NODE}.{DOMAIN}")]
    numbers = [int(match[1]) for name in unique if (match := _PLACEHOLDER_NAME.fullmatch(name))]
    if not nodes:
        return None
    return PeerNode(nodes[0] if len(nodes) == 1 and len(numbers) <= 1 else "", max(numbers, default=None))


def job_of(name: str) -> PeerJob | None:
    """The job and the user of such a name; None for other names. One that ends like it and is not has no user, 0."""
    if not name.endswith(f".{_JOB}.{DOMAIN}"):
        return None
    match = _JOB_NAME.fullmatch(name)
    return PeerJob("", 0) if match is None else PeerJob(match[1], int(match[2]))


def role_of(name: str) -> str | None:
    """The role of a DNS name; None for names that are not of this form."""
    role, _, domain = name.partition(".")
    return role if domain == DOMAIN and role in ROLES else None
