"""Mutual TLS between real servers and channels."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
import pytest

from malletrain.runtime.access.pki import ensure_certificate
from malletrain.tls.credentials import channel_credentials, peer_options, peer_roles, server_credentials
from malletrain.tls.files import CertificateFileError, read_certificate_file
from tests.support.clocks import ManualClock
from tests.tls.serving import METHOD, ask, certificate, channel_to, echoing, repeat, serial, shown_serial

REFUSED = grpc.StatusCode.UNAVAILABLE


async def refused(address: str, credentials: Path | grpc.ChannelCredentials, role: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(address, credentials, role)
    assert caught.value.code() is REFUSED
    return caught.value.details() or ""


async def test_both_ends_know_each_other(tmp_path: Path) -> None:
    async with echoing(certificate(tmp_path, "agent")) as (address, echo):
        assert await ask(address, certificate(tmp_path, "supervisor"), "agent") == b"hello"
    assert echo.callers == [{"supervisor"}]


async def test_a_server_of_another_role_is_refused(tmp_path: Path) -> None:
    async with echoing(certificate(tmp_path, "agent")) as (address, echo):
        await refused(address, certificate(tmp_path, "supervisor"), "monitor")
    assert not echo.callers


async def test_another_installation_is_refused_by_both(tmp_path: Path) -> None:
    ours, foreign = tmp_path / "ours", tmp_path / "foreign"
    client = certificate(foreign, "supervisor")
    async with echoing(certificate(ours, "agent")) as (address, echo):
        await refused(address, client, "agent")
        # A client that would accept this server is refused by it: its own certificate is of the other CA.
        mixed = read_certificate_file(client)
        trusting = read_certificate_file(certificate(ours, "agent")).authority
        credentials = grpc.ssl_channel_credentials(trusting, mixed.private_key, mixed.certificate)
        await refused(address, credentials, "agent")
    assert not echo.callers


async def test_a_client_without_certificate_is_refused(tmp_path: Path) -> None:
    path = certificate(tmp_path, "agent")
    async with echoing(path) as (address, echo):
        await refused(address, grpc.ssl_channel_credentials(read_certificate_file(path).authority), "agent")
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(METHOD)(b"hello", timeout=5)
            assert caught.value.code() is REFUSED
    assert not echo.callers


async def test_a_client_whose_certificate_has_expired_is_refused(tmp_path: Path) -> None:
    server = certificate(tmp_path, "agent")
    expired = ensure_certificate(tmp_path, "supervisor", ManualClock(time.time() - 7200), 3600)
    async with echoing(server) as (address, echo):
        await refused(address, expired, "agent")
    assert not echo.callers


async def test_a_stream_goes_on_while_the_certificate_is_replaced(tmp_path: Path) -> None:
    path, client = certificate(tmp_path, "agent"), certificate(tmp_path, "supervisor")
    before = serial(path)
    async with echoing(path) as (address, _), channel_to(address, client, "agent") as channel:
        stream = channel.stream_stream(METHOD)()
        assert await repeat(stream, b"before") == b"before"
        assert await shown_serial(address, client) == before

        path.unlink()
        assert serial(certificate(tmp_path, "agent")) != before

        assert await repeat(stream, b"after") == b"after"
        assert await shown_serial(address, client) == serial(path)
        assert await ask(address, client, "agent") == b"hello"
        assert await repeat(stream, b"still") == b"still"
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_server_whose_certificate_has_expired_takes_over_the_new_one(tmp_path: Path) -> None:
    client = certificate(tmp_path, "supervisor")
    path = ensure_certificate(tmp_path, "agent", ManualClock(time.time() - 7200), 3600)
    async with echoing(path) as (address, _):
        await refused(address, client, "agent")
        assert certificate(tmp_path, "agent") == path
        assert await ask(address, client, "agent") == b"hello"


@pytest.mark.parametrize("damage", ["missing", "open", "cut"])
async def test_a_server_keeps_its_certificate_while_the_file_is_of_no_use(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, client = certificate(tmp_path, "agent"), certificate(tmp_path, "supervisor")
    async with echoing(path) as (address, _):
        content = path.read_bytes()
        path.unlink()
        if damage != "missing":
            path.touch(0o644 if damage == "open" else 0o600)
            path.write_bytes(content if damage == "open" else content[:300])
        assert await ask(address, client, "agent") == b"hello"
        assert "the certificate stays as it was" in caplog.text
        path.unlink(missing_ok=True)
        renewed = serial(certificate(tmp_path, "agent"))
        assert await shown_serial(address, client) == renewed


def test_blocking_channels(tmp_path: Path) -> None:
    path = certificate(tmp_path, "agent")
    server = grpc.server(ThreadPoolExecutor(2))
    callers = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        callers.append(peer_roles(context.auth_context()))
        return request

    handlers = {"Repeat": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(path))
    server.start()
    credentials = channel_credentials(certificate(tmp_path, "supervisor"))
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=peer_options("agent")) as channel:
            assert channel.unary_unary(METHOD)(b"hello", timeout=5) == b"hello"
    finally:
        server.stop(0).wait()
    assert callers == [{"supervisor"}]


def test_roles_in_a_certificate() -> None:
    names = "x509_subject_alternative_name"
    assert peer_roles({}) == frozenset()
    assert peer_roles({"x509_common_name": [b"agent.malletrain.internal"]}) == frozenset()
    assert peer_roles({names: [b"agent.malletrain.internal"]}) == {"agent"}
    foreign = [b"agent.example.org", b"agent", b"boss.malletrain.internal", b"x.agent.malletrain.internal", b"\xff"]
    assert peer_roles({names: foreign}) == frozenset()


def test_no_credentials_without_a_file(tmp_path: Path) -> None:
    for make in (server_credentials, channel_credentials):
        with pytest.raises(CertificateFileError, match=r"agent\.pem: expected a file with a certificate"):
            make(tmp_path / "agent.pem")
