"""AccessService on a real server: who gives tokens, what they are worth, how they end."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import open_installation, own_user
from malletrain.runtime.access.munge import Munge
from malletrain.runtime.access.service import AccessService
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import access_pb2 as pb
from malletrain.v1 import access_pb2_grpc
from tests.access.munged import munged
from tests.support.channels import plain_channel


class Callers:
    """Stubs with one credential or another."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._channels: list[grpc.aio.Channel] = []
        self.operator = self.with_token(token)
        self.nobody = self.with_token("")

    def with_token(self, token: str) -> Any:
        self._channels.append(plain_channel(self._address, FixedToken(token)))
        return access_pb2_grpc.AccessServiceStub(self._channels[-1])

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


@asynccontextmanager
async def serving(folder: Path, munge: Munge | None = None, **settings: Any) -> AsyncIterator[Callers]:
    access = AccessSettings(**{"munge": "off", **settings})
    installation = open_installation(Settings(state_dir=folder, access=access), SystemClock())
    host = ServiceHost("127.0.0.1:0", installation.interceptor("job_manager"))
    AccessService(installation, munge).register(host)
    callers = Callers(f"127.0.0.1:{await host.start()}", installation.tokens.sign("olga", Role.OPERATOR, 600.0)[0])
    try:
        yield callers
    finally:
        await callers.close()
        await host.stop(0)


async def who(stub: Any) -> pb.Identity:
    response: pb.GetIdentityResponse = await stub.GetIdentity(pb.GetIdentityRequest(), timeout=10)
    return response.identity


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


@pytest.fixture(scope="module")
def munge() -> Iterator[Munge]:
    with tempfile.TemporaryDirectory(prefix="munge-") as folder, munged(Path(folder)) as running:
        yield running


@pytest.mark.parametrize("role", ["ROLE_VIEWER", "ROLE_USER", "ROLE_OPERATOR"])
async def test_a_token_is_worth_what_was_asked_for(tmp_path: Path, role: str) -> None:
    async with serving(tmp_path) as callers:
        request = pb.CreateTokenRequest(user="bob", role=pb.Role.Value(role), lifespan_seconds=90)
        made = await callers.operator.CreateToken(request, timeout=10)
        identity = await who(callers.with_token(made.token))
        assert identity == made.identity
        assert (identity.user, pb.Role.Name(identity.role)) == ("bob", role)
        assert 60 < identity.expire_time.seconds - SystemClock().time() < 91


async def test_what_is_not_asked_for_is_a_user_for_the_default_lifespan(tmp_path: Path) -> None:
    async with serving(tmp_path, default_lifespan_seconds=1000) as callers:
        made = await callers.operator.CreateToken(pb.CreateTokenRequest(user="bob"), timeout=10)
        assert made.identity.role == pb.ROLE_USER
        assert 900 < made.identity.expire_time.seconds - SystemClock().time() <= 1000


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.CreateTokenRequest(), "user"),
        (pb.CreateTokenRequest(user="a b"), "user"),
        (pb.CreateTokenRequest(user="a" * 65), "user"),
        (pb.CreateTokenRequest(user="bob", role=pb.ROLE_SERVICE), "role"),
        (pb.CreateTokenRequest(user="bob", role=pb.ROLE_JOB), "role"),
        (pb.CreateTokenRequest(user="bob", role=pb.ROLE_ANYBODY), "role"),
        (pb.CreateTokenRequest(user="bob", role=99), "role"),  # type: ignore[arg-type]
        (pb.CreateTokenRequest(user="bob", lifespan_seconds=-1), "lifespan_seconds"),
        (pb.CreateTokenRequest(user="bob", lifespan_seconds=1e9), "lifespan_seconds"),
        (pb.CreateTokenRequest(user="bob", lifespan_seconds=float("nan")), "lifespan_seconds"),
        (pb.RevokeTokenRequest(), "revoked"),
        (pb.RevokeTokenRequest(user="../x"), "user"),
        (pb.RevokeTokenRequest(token_id="a b"), "token_id"),
    ],
    ids=str,
)
async def test_wrong_requests_are_refused_with_the_field(tmp_path: Path, request_: Any, field: str) -> None:
    async with serving(tmp_path) as callers:
        method = "CreateToken" if isinstance(request_, pb.CreateTokenRequest) else "RevokeToken"
        code, details = await refused(getattr(callers.operator, method)(request_, timeout=10))
        assert code == "INVALID_ARGUMENT"
        assert details.startswith(f"{field}: expected")


async def test_only_operators_give_and_revoke(tmp_path: Path) -> None:
    async with serving(tmp_path) as callers:
        request = pb.CreateTokenRequest(user="bob", role=pb.ROLE_USER)
        user = callers.with_token((await callers.operator.CreateToken(request, timeout=10)).token)
        assert (await refused(user.CreateToken(request, timeout=10)))[0] == "PERMISSION_DENIED"
        revoking = pb.RevokeTokenRequest(user="olga")
        assert (await refused(user.RevokeToken(revoking, timeout=10)))[0] == "PERMISSION_DENIED"
        assert (await refused(callers.nobody.CreateToken(request, timeout=10)))[0] == "UNAUTHENTICATED"
        assert (await who(callers.operator)).user == "olga"


async def test_a_token_is_revoked_by_its_identifier_and_all_of_a_user_by_the_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as callers:
        request = pb.CreateTokenRequest(user="bob")
        made = [await callers.operator.CreateToken(request, timeout=10) for _ in range(3)]
        stubs = [callers.with_token(entry.token) for entry in made]
        await callers.operator.RevokeToken(pb.RevokeTokenRequest(token_id=made[0].identity.token_id), timeout=10)
        code, details = await refused(who(stubs[0]))
        assert (code, details.split(":")[0]) == ("UNAUTHENTICATED", "the token has been revoked")
        assert (await who(stubs[1])).user == "bob"
        await callers.operator.RevokeToken(pb.RevokeTokenRequest(user="bob"), timeout=10)
        for stub in stubs[1:]:
            assert (await refused(who(stub)))[0] == "UNAUTHENTICATED"
        again = await callers.operator.CreateToken(request, timeout=10)
        assert (await who(callers.with_token(again.token))).user == "bob"
        assert (await who(callers.operator)).user == "olga"


async def test_no_secret_is_logged(tmp_path: Path, munge: Munge) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path, munge) as callers:
            made = await callers.operator.CreateToken(pb.CreateTokenRequest(user="bob"), timeout=10)
            credential = munge.make_credential()
            exchange = pb.ExchangeMungeCredentialRequest(credential=credential)
            given = await callers.nobody.ExchangeMungeCredential(exchange, timeout=10)
            await refused(callers.nobody.ExchangeMungeCredential(exchange, timeout=10))
    key = (tmp_path / "keys/token.key").read_text().strip()
    assert {"token created", "token given for MUNGE credential", "audit"} <= {line["event"] for line in logs}
    for secret in (made.token, given.token, credential, key):
        assert secret not in str(logs)


@pytest.mark.parametrize(
    ("settings", "role"), [({}, "ROLE_OPERATOR"), ({"viewers": (own_user(),)}, "ROLE_OPERATOR")], ids=str
)
async def test_the_services_own_account_is_an_operator_by_munge(
    tmp_path: Path, munge: Munge, settings: Any, role: str
) -> None:
    async with serving(tmp_path, munge, **settings) as callers:
        request = pb.ExchangeMungeCredentialRequest(credential=munge.make_credential())
        given = await callers.nobody.ExchangeMungeCredential(request, timeout=10)
        identity = await who(callers.with_token(given.token))
        assert (identity.user, pb.Role.Name(identity.role)) == (own_user(), role)
        assert identity.expire_time.seconds - SystemClock().time() <= 600
        code, details = await refused(callers.nobody.ExchangeMungeCredential(request, timeout=10))
        assert (code, details) == ("UNAUTHENTICATED", "the MUNGE credential has been used before")


async def test_where_munge_is_off_nobody_is_vouched_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as callers:
        request = pb.ExchangeMungeCredentialRequest(credential="MUNGE:x")
        code, details = await refused(callers.nobody.ExchangeMungeCredential(request, timeout=10))
        assert code == "PERMISSION_DENIED"
        assert "ask an operator for a token" in details


async def test_a_munged_that_is_away_makes_the_service_unavailable(tmp_path: Path, munge: Munge) -> None:
    away = Munge(munge.munge, munge.unmunge, "/nonexistent/socket")
    async with serving(tmp_path, away) as callers:
        request = pb.ExchangeMungeCredentialRequest(credential=munge.make_credential())
        assert (await refused(callers.nobody.ExchangeMungeCredential(request, timeout=10)))[0] == "UNAVAILABLE"
