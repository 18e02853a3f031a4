"""Every rpc, with every kind of credential: exactly the allowed calls get past the checks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from malletrain.runtime.access.identity import HUMAN_ROLES, Role
from malletrain.runtime.access.policy import REQUIRED_ROLES
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import SystemClock
from tests.access.serving import KEY, METHODS, PASSED, UNDECLARED, CheckedServer, call, checked_server
from tests.support.channels import plain_channel
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until_async

BAD = ("none", "garbage", "other key", "expired", "not yet", "revoked", "revoked user", "two", "other scheme")
LIST_JOBS = "/malletrain.v1.JobManagerService/ListJobs"
CANCEL_JOB = "/malletrain.v1.JobManagerService/CancelJob"

Header = tuple[tuple[str, str], ...]


def header(token: str) -> Header:
    return (("authorization", f"Bearer {token}"),)


def bad_headers(server: CheckedServer) -> dict[str, Header]:
    """A header for each entry of BAD. All but garbage are tokens of an operator."""
    now = SystemClock().time()
    revoked, identity = server.tokens.sign("eve", Role.OPERATOR, 600.0)
    server.revoked.revoke_token(identity.token_id)
    of_user = server.token(Role.OPERATOR, user="mallory")
    server.revoked.revoke_user("mallory")
    good = server.token(Role.OPERATOR)
    return {
        "none": (),
        "garbage": header("e30.e30.e30"),
        "other key": header(Tokens(b"x" * 32, SystemClock()).sign("ada", Role.OPERATOR, 600.0)[0]),
        "expired": header(Tokens(KEY, ManualClock(now - 100)).sign("ada", Role.OPERATOR, 50.0)[0]),
        "not yet": header(Tokens(KEY, ManualClock(now + 100)).sign("ada", Role.OPERATOR, 50.0)[0]),
        "revoked": header(revoked),
        "revoked user": header(of_user),
        "two": header(good) * 2,
        "other scheme": (("authorization", f"Basic {good}"),),
    }


def expected(method: str, role: Role | None) -> str:
    """The code of a call, by what access.proto says in words."""
    required = REQUIRED_ROLES[method]
    if required is Role.ANYBODY:
        return "ABORTED"
    if required in (Role.SUPERVISOR, Role.AGENT):
        return "UNAUTHENTICATED"  # whatever the token: it takes a certificate
    if role is None:
        return "UNAUTHENTICATED"
    may = role is Role.SERVICE or role is required
    if role in HUMAN_ROLES and required in HUMAN_ROLES:
        may = {"viewer": 1, "user": 2, "operator": 3}[role] >= {"viewer": 1, "user": 2, "operator": 3}[required]
    if role is Role.SERVICE and method.endswith(("/CreateToken", "/RevokeToken")):
        may = False  # or a service could be anybody
    return "ABORTED" if may else "PERMISSION_DENIED"


@pytest.mark.parametrize("kind", [*BAD, "job", "viewer", "user", "operator", "service"])
async def test_every_rpc_with_this_credential(kind: str, tmp_path: Path) -> None:
    role = None if kind in BAD else Role(kind)
    async with checked_server(tmp_path) as server, plain_channel(server.address, None) as channel:
        shown = bad_headers(server)[kind] if role is None else header(server.token(role))
        found = {method: await call(channel, method, shown) for method in METHODS}
        assert {method: code for method, (code, _) in found.items()} == {
            method: expected(method, role) for method in METHODS
        }
        passed = [details for code, details in found.values() if code == "ABORTED"]
        assert set(passed) <= {PASSED}
        assert len(server.handlers.callers) == len(passed)
        token = shown[0][1].split()[-1] if shown else "-"
        assert not any(token in details for _, details in found.values())


async def test_every_service_and_a_method_of_each_kind_is_in_the_table() -> None:
    assert {method.split("/")[1].removeprefix("malletrain.v1.") for method in METHODS} == {
        *("AccessService", "AllocatorService", "JobManagerService", "MonitorService"),
        *("ProfilerService", "ScavengerService", "SupervisorService"),
        *("AgentService", "AgentRegistryService"),
    }
    assert METHODS.keys() == REQUIRED_ROLES.keys()


async def test_nobody_may_call_a_method_that_declares_no_role(tmp_path: Path) -> None:
    async with checked_server(tmp_path) as server, plain_channel(server.address, None) as channel:
        assert (await call(channel, UNDECLARED, ()))[0] == "UNAUTHENTICATED"
        for role in (*HUMAN_ROLES, Role.SERVICE, Role.JOB):
            assert (await call(channel, UNDECLARED, header(server.token(role))))[0] == "PERMISSION_DENIED"
        assert server.handlers.callers == []


async def test_handlers_know_who_calls_and_one_caller_is_never_taken_for_another(tmp_path: Path) -> None:
    async with checked_server(tmp_path) as server, plain_channel(server.address, None) as channel:
        for user in ("ada", "bob", "ada"):
            for method in (LIST_JOBS, "/malletrain.v1.JobManagerService/WatchJobs", CANCEL_JOB):
                await call(channel, method, header(server.token(Role.USER, user=user)))
        await call(channel, "/malletrain.v1.AccessService/ExchangeMungeCredential", ())
        names = [caller.user if caller else "" for caller in server.handlers.callers]
        assert names == ["ada"] * 3 + ["bob"] * 3 + ["ada"] * 3 + [""]


async def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    async with checked_server(tmp_path) as server, plain_channel(server.address, None) as channel:
        _, nobody = await call(channel, LIST_JOBS, ())
        assert "MALLETRAIN_TOKEN" in nobody
        assert "malletrain token" in nobody
        _, viewer = await call(channel, CANCEL_JOB, header(server.token(Role.VIEWER)))
        assert viewer.startswith("CancelJob needs the role user, and ada has the role viewer; an operator can give you")
        assert "`malletrain token --user ada --role user`" in viewer
        _, operator = await call(channel, "/malletrain.v1.MonitorService/Report", header(server.token(Role.OPERATOR)))
        assert "malletrain token" not in operator


async def test_a_token_that_was_accepted_expires_and_can_be_revoked(tmp_path: Path) -> None:
    async with checked_server(tmp_path) as server, plain_channel(server.address, None) as channel:
        short, long = server.token(Role.USER, lifespan=1.0), server.token(Role.USER)
        assert (await call(channel, LIST_JOBS, header(short)))[0] == "ABORTED"
        assert (await call(channel, LIST_JOBS, header(long)))[0] == "ABORTED"
        await _until_refused(channel, short, 10.0)
        server.revoked.revoke_user("ada")
        await _until_refused(channel, long, 1.0)
        fresh = server.token(Role.USER)
        assert (await call(channel, LIST_JOBS, header(fresh)))[0] == "ABORTED"


async def _until_refused(channel: grpc.aio.Channel, token: str, seconds: float) -> None:
    """Call until the token is refused; an error if that takes longer."""
    async with asyncio.timeout(seconds):
        while (await call(channel, LIST_JOBS, header(token)))[0] != "UNAUTHENTICATED":
            await asyncio.sleep(0.02)


async def test_health_needs_nobody_and_reflection_only_where_it_is_not_open(tmp_path: Path) -> None:
    for is_open in (True, False):
        async with (
            checked_server(tmp_path, open_reflection=is_open) as server,
            plain_channel(server.address, None) as channel,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert await _reflects(channel, ()) == is_open
            assert await _reflects(channel, header(server.token(Role.VIEWER)))


async def _reflects(channel: grpc.aio.Channel, metadata: Header) -> bool:
    """Whether reflection answers; otherwise it must ask for an identity."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    stream = stub.ServerReflectionInfo(iter([request]), metadata=metadata, timeout=5)
    code = grpc.StatusCode.OK
    try:
        await anext(aiter(stream))
    except grpc.aio.AioRpcError as error:
        code = error.code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
    return code is grpc.StatusCode.OK


async def test_every_call_that_is_more_than_a_read_is_audited_allowed_or_not(tmp_path: Path) -> None:
    async with checked_server(tmp_path) as server, plain_channel(server.address, None) as channel:
        user, viewer = server.token(Role.USER), server.token(Role.VIEWER)
        with capture_logs() as logs:
            for token in (user, viewer, "", "garbage"):
                for method in (LIST_JOBS, CANCEL_JOB):
                    await call(channel, method, header(token))
            await call(channel, "/malletrain.v1.MonitorService/Report", header(server.token(Role.JOB)))
            await wait_until_async(lambda: len(logs) >= 5)
        lines = [line for line in logs if line["event"] == "audit"]
        assert [(line["user"], line["role"], line["allowed"], line["job"]) for line in lines] == [
            ("ada", "user", True, ""),
            ("ada", "viewer", False, ""),
            ("", "", False, ""),
            ("", "", False, ""),
            ("ada", "job", True, "j000001"),
        ]
        assert {line["method"] for line in lines} == {CANCEL_JOB, "/malletrain.v1.MonitorService/Report"}
        assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)
        assert not any(token in str(logs) for token in (user, viewer))
