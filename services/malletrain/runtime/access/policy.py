"""Which role a method requires, as the protos declare it, and which callers have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType

from google.protobuf.descriptor import FileDescriptor

from malletrain.runtime.access.identity import CERTIFICATE_ROLES, HUMAN_ROLES, Role
from malletrain.v1 import (
    access_pb2,
    agent_pb2,
    allocator_pb2,
    job_manager_pb2,
    monitor_pb2,
    profiler_pb2,
    scavenger_pb2,
    supervisor_pb2,
)

_PREFIX = "ROLE_"
_ACCESS = f"/{access_pb2.DESCRIPTOR.services_by_name['AccessService'].full_name}/"
FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        access_pb2,
        agent_pb2,
        allocator_pb2,
        job_manager_pb2,
        monitor_pb2,
        profiler_pb2,
        scavenger_pb2,
        supervisor_pb2,
    )
)


def role_of(number: access_pb2.Role.ValueType) -> Role | None:
    """A role of the protos; None for ROLE_UNSPECIFIED and numbers that are none."""
    if number not in access_pb2.Role.values() or number == access_pb2.ROLE_UNSPECIFIED:
        return None
    return Role(access_pb2.Role.Name(number).removeprefix(_PREFIX).lower())


def number_of(role: Role) -> access_pb2.Role.ValueType:
    """A role as the protos have it."""
    return access_pb2.Role.Value(f"{_PREFIX}{role.value.upper()}")


def _declared_roles() -> Iterator[tuple[str, Role]]:
    for file in FILES:
        for service in file.services_by_name.values():
            for method in service.methods:
                role = role_of(method.GetOptions().Extensions[access_pb2.required_role])
                if role is not None:
                    yield f"/{service.full_name}/{method.name}", role


REQUIRED_ROLES: Mapping[str, Role] = MappingProxyType(dict(_declared_roles()))
"""Role that each method requires, by its full name, e.g. `/malletrain.v1.JobManagerService/GetJob`."""


def allows(role: Role, method: str, required: Role) -> bool:
    """Whether callers whose token has a role may call a method that requires another.

    Services may call all but what makes and revokes tokens of people: with that, one of them could be anybody.
    """
    if required in CERTIFICATE_ROLES:
        return False
    if required is Role.ANYBODY:
        return True
    if role is Role.SERVICE:
        return required is not Role.OPERATOR or not method.startswith(_ACCESS)
    if role in HUMAN_ROLES and required in HUMAN_ROLES:
        return HUMAN_ROLES.index(role) >= HUMAN_ROLES.index(required)
    return role is Role.JOB and required is Role.JOB


def admits(certified: Set[str], required: Role | None) -> bool:
    """Whether a caller with a certificate of ours may call what requires a role. Most methods ask for a token as well.

    Agents pass on what trainers report, and may call nothing else that asks for a token; supervisors may call nothing.

    Args:
        certified: Roles in the caller's certificate; empty if it has shown none.
        required: Role that the method requires; None if it declares none.
    """
    if required in CERTIFICATE_ROLES:
        return required.value in certified
    if required is Role.JOB and Role.AGENT.value in certified:
        return True
    return certified.isdisjoint(role.value for role in CERTIFICATE_ROLES)


def is_audited(method: str) -> bool:
    """Whether calls of a method of ours are written to the audit log: all but reads."""
    return REQUIRED_ROLES.get(method, Role.VIEWER) is not Role.VIEWER
