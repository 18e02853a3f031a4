"""Which role each method requires, and who has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.access import policy
from malletrain.runtime.access.identity import (
    CERTIFICATE_ROLES,
    HUMAN_ROLES,
    Identity,
    PermissionDeniedError,
    Role,
    require_job,
)
from malletrain.runtime.access.policy import REQUIRED_ROLES, admits, allows, is_audited, number_of, role_of
from malletrain.v1 import access_pb2
from tests.support.access import TOKENS

PROTOS = Path(__file__).parents[2] / "protos/malletrain/v1"
CALLERS = [role for role in Role if role not in (Role.ANYBODY, *CERTIFICATE_ROLES)]


def identity(role: Role, job_id: str = "") -> Identity:
    return Identity("somebody", role, "t1", 0.0, 1.0, job_id)


def test_every_rpc_of_every_proto_is_known() -> None:
    known = {Path(file.name).name for file in policy.FILES}
    with_services = {path.name for path in PROTOS.glob("*.proto") if "\nservice " in path.read_text()}
    assert known == with_services
    assert len(REQUIRED_ROLES) == sum(path.read_text().count("\n  rpc ") for path in PROTOS.glob("*.proto"))


@pytest.mark.parametrize(
    ("method", "required"),
    [
        ("JobManagerService/ListJobs", Role.VIEWER),
        ("JobManagerService/SubmitJobs", Role.USER),
        ("JobManagerService/CancelJob", Role.USER),
        ("JobManagerService/UpdateJob", Role.USER),
        ("ProfilerService/StartProfile", Role.USER),
        ("ScavengerService/ReclaimNodes", Role.OPERATOR),
        ("ScavengerService/DrainNodes", Role.OPERATOR),
        ("ScavengerService/ResumeNodes", Role.OPERATOR),
        ("AllocatorService/Solve", Role.OPERATOR),
        ("AccessService/CreateToken", Role.OPERATOR),
        ("JobManagerService/ApplyPlan", Role.SERVICE),
        ("JobManagerService/ReleaseNodes", Role.SERVICE),
        ("SupervisorService/Stop", Role.SERVICE),
        ("MonitorService/Report", Role.JOB),
        ("AccessService/ExchangeMungeCredential", Role.ANYBODY),
        ("AgentService/ControlWorkers", Role.SUPERVISOR),
        ("AgentRegistryService/Register", Role.AGENT),
    ],
)
def test_what_methods_require(method: str, required: Role) -> None:
    assert REQUIRED_ROLES[f"/malletrain.v1.{method}"] is required


def test_only_the_exchange_of_a_credential_needs_no_identity_and_only_reports_that_of_a_job() -> None:
    by_role = {role: [name for name, needed in REQUIRED_ROLES.items() if needed is role] for role in Role}
    assert by_role[Role.ANYBODY] == ["/malletrain.v1.AccessService/ExchangeMungeCredential"]
    assert by_role[Role.JOB] == ["/malletrain.v1.MonitorService/Report"]


@given(st.sampled_from(CALLERS), st.sampled_from(list(Role)))
def test_roles_of_people_are_ordered_services_may_all_and_jobs_one_thing(role: Role, required: Role) -> None:
    allowed = allows(role, "/malletrain.v1.JobManagerService/Any", required)
    if required in CERTIFICATE_ROLES:
        assert not allowed
    elif required is Role.ANYBODY or role is Role.SERVICE:
        assert allowed
    elif role is Role.JOB or required is Role.JOB:
        assert allowed == (role is required)
    elif required is Role.SERVICE:
        assert not allowed
    else:
        assert allowed == (HUMAN_ROLES.index(role) >= HUMAN_ROLES.index(required))


@given(st.sampled_from(list(Role)))
def test_a_larger_role_may_all_that_a_smaller_may(required: Role) -> None:
    allowed = [allows(role, "/malletrain.v1.JobManagerService/Any", required) for role in (*HUMAN_ROLES, Role.SERVICE)]
    assert allowed == sorted(allowed)


@given(st.integers(-(2**31), 2**31 - 1))
def test_numbers_that_are_no_role_are_none(number: int) -> None:
    role = role_of(number)  # type: ignore[arg-type]
    assert (role is None) == (number not in range(1, 9))
    assert role is None or number_of(role) == number


def test_every_role_is_one_of_the_protos() -> None:
    assert {number_of(role) for role in Role} == set(access_pb2.Role.values()) - {access_pb2.ROLE_UNSPECIFIED}


def test_a_trainer_speaks_for_its_own_job_only_and_a_service_for_all() -> None:
    require_job(identity(Role.JOB, "j000001"), "j000001")
    require_job(identity(Role.SERVICE), "j000002")
    with pytest.raises(PermissionDeniedError, match="j000001"):
        require_job(identity(Role.JOB, "j000001"), "j000002")


@pytest.mark.parametrize("required", [*Role, None])
def test_certificates_open_what_requires_them_and_agents_pass_on_reports(required: Role | None) -> None:
    for shown in ("supervisor", "agent"):
        passes = required is Role.JOB and shown == "agent"
        assert admits({shown}, required) == (passes or (required is not None and required.value == shown))
    for others in (frozenset[str](), {"scavenger"}, {"monitor", "allocator"}):
        assert admits(others, required) == (required not in CERTIFICATE_ROLES)


@pytest.mark.parametrize("role", CERTIFICATE_ROLES)
def test_no_token_gives_the_role_of_a_certificate(role: Role) -> None:
    with pytest.raises(ValueError, match="no token may exist"):
        TOKENS.sign("n1", role, 60.0)


def test_all_but_reads_are_audited() -> None:
    assert is_audited("/malletrain.v1.JobManagerService/CancelJob")
    assert is_audited("/malletrain.v1.AccessService/ExchangeMungeCredential")
    assert not is_audited("/malletrain.v1.JobManagerService/ListJobs")


@pytest.mark.parametrize("name", ["CreateToken", "RevokeToken"])
def test_no_service_makes_tokens_of_people(name: str) -> None:
    method = f"/malletrain.v1.AccessService/{name}"
    assert REQUIRED_ROLES[method] is Role.OPERATOR
    assert [role for role in Role if allows(role, method, Role.OPERATOR)] == [Role.OPERATOR]
