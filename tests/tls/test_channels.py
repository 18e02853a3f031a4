"""Channels that outlive certificates."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.tls.channels import renewing_blocking_channel, renewing_channel
from malletrain.tls.credentials import channel_credentials, peer_options, server_credentials
from malletrain.tls.files import CertificateFileError
from tests.support.waiting import wait_until, wait_until_async
from tests.tls.serving import METHOD, certificate, echoing, repeat


class Opened:
    """Opens channels, and counts those that are open."""

    def __init__(self, address: str, path: Path, module: Any) -> None:
        self.address, self.path, self.module = address, path, module
        self.channels: list[Any] = []
        self.closed: list[Any] = []

    def __call__(self) -> Any:
        channel = self.module.secure_channel(
            self.address, channel_credentials(self.path), options=peer_options("agent")
        )
        close = channel.close

        def noted(*arguments: Any) -> Any:
            self.closed.append(channel)
            return close(*arguments)

        channel.close = noted
        self.channels.append(channel)
        return channel


def replace(path: Path, state_dir: Path) -> None:
    """Replace the file of a role by a new certificate."""
    path.unlink()
    certificate(state_dir, path.stem)


async def test_new_calls_use_the_new_file_and_streams_go_on(tmp_path: Path) -> None:
    path = certificate(tmp_path, "supervisor")
    async with echoing(certificate(tmp_path, "agent")) as (address, _):
        opened = Opened(address, path, grpc.aio)
        async with renewing_channel(path, opened) as channel:
            method = channel.stream_stream(METHOD)
            first = method()
            assert await repeat(first, b"1") == b"1"
            assert len(opened.channels) == 1

            replace(path, tmp_path)
            second = method()
            assert await repeat(second, b"2") == b"2"
            assert await repeat(first, b"3") == b"3"
            assert (len(opened.channels), opened.closed) == (2, [])

            await first.done_writing()
            assert await first.code() is grpc.StatusCode.OK
            third = method()
            await wait_until_async(lambda: opened.closed == opened.channels[:1], what="the old connection closed")
            assert await repeat(second, b"4") == b"4"
            assert await repeat(third, b"5") == b"5"
    assert opened.closed == opened.channels


async def test_a_cancelled_call_has_ended(tmp_path: Path) -> None:
    path = certificate(tmp_path, "supervisor")
    async with echoing(certificate(tmp_path, "agent")) as (address, _):
        opened = Opened(address, path, grpc.aio)
        async with renewing_channel(path, opened) as channel:
            method = channel.stream_stream(METHOD)
            first = method()
            assert await repeat(first, b"1") == b"1"
            first.cancel()
            await wait_until_async(first.done, what="the call cancelled")
            replace(path, tmp_path)
            await repeat(method(), b"2")
            await repeat(method(), b"3")
            await wait_until_async(lambda: opened.closed == opened.channels[:1], what="the old connection closed")


async def test_a_file_of_no_use_leaves_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = certificate(tmp_path, "supervisor")
    async with echoing(certificate(tmp_path, "agent")) as (address, _):
        opened = Opened(address, path, grpc.aio)
        async with renewing_channel(path, opened) as channel:
            path.write_bytes(b"rubbish")
            assert await repeat(channel.stream_stream(METHOD)(), b"1") == b"1"
            path.unlink()
            assert await repeat(channel.stream_stream(METHOD)(), b"2") == b"2"
    assert len(opened.channels) == 1
    assert caplog.text.count("the connection stays as it was") == 2


async def test_a_peer_of_a_new_ca_is_reached_once_its_certificate_is_there(tmp_path: Path) -> None:
    path = certificate(tmp_path, "supervisor")
    shutil.copytree(tmp_path / "keys", tmp_path / "moved/keys")
    (tmp_path / "moved/keys/ca.key").unlink()
    server = certificate(tmp_path / "moved", "agent")
    async with (
        echoing(server) as (address, _),
        renewing_channel(path, Opened(address, path, grpc.aio)) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(METHOD)(b"1", timeout=5)
        shutil.copy(certificate(tmp_path / "moved", "supervisor"), path)
        assert await repeat(channel.stream_stream(METHOD)(), b"2") == b"2"


@pytest.fixture
def blocking_server(tmp_path: Path) -> Iterator[tuple[str, threading.Event]]:
    """A server of all four kinds of methods; the second part lets its streams end."""
    ending = threading.Event()

    def stream(_: object, __: object) -> Iterator[bytes]:
        yield b"first"
        assert ending.wait(20)
        yield b"last"

    handlers = {
        "UU": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
        "US": grpc.unary_stream_rpc_method_handler(stream),
        "SU": grpc.stream_unary_rpc_method_handler(lambda requests, _: b"".join(requests)),
        "SS": grpc.stream_stream_rpc_method_handler(lambda requests, _: requests),
    }
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(certificate(tmp_path, "agent")))
    server.start()
    try:
        yield f"127.0.0.1:{port}", ending
    finally:
        ending.set()
        server.stop(0).wait()


def test_all_kinds_of_blocking_calls(tmp_path: Path, blocking_server: tuple[str, threading.Event]) -> None:
    address, ending = blocking_server
    path = certificate(tmp_path, "supervisor")
    opened = Opened(address, path, grpc)
    with renewing_blocking_channel(path, opened) as channel:
        unary, stream = channel.unary_unary("/t.T/UU"), channel.unary_stream("/t.T/US")
        assert unary(b"a", timeout=5) == b"a"
        assert unary.with_call(b"b", timeout=5)[0] == b"b"
        assert unary.future(b"c", timeout=5).result() == b"c"
        assert channel.stream_unary("/t.T/SU")(iter([b"d", b"e"]), timeout=5) == b"de"
        assert list(channel.stream_stream("/t.T/SS")(iter([b"f", b"g"]), timeout=5)) == [b"f", b"g"]
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/t.T/Nothing")(b"", timeout=5)
        answers = stream(b"", timeout=30)
        assert next(answers) == b"first"

        replace(path, tmp_path)
        assert unary(b"h", timeout=5) == b"h"
        assert unary(b"i", timeout=5) == b"i"
        assert (len(opened.channels), opened.closed) == (2, [])
        ending.set()
        assert list(answers) == [b"last"]
        wait_until(lambda: unary(b"j", timeout=5) and opened.closed == opened.channels[:1], what="the old one closed")
    assert opened.closed == opened.channels


async def test_all_kinds_of_calls_of_an_event_loop(
    tmp_path: Path, blocking_server: tuple[str, threading.Event]
) -> None:
    address, ending = blocking_server
    ending.set()
    path = certificate(tmp_path, "supervisor")

    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    async with renewing_channel(path, Opened(address, path, grpc.aio)) as channel:
        for _ in range(2):
            await channel.channel_ready()
            assert await channel.unary_unary("/t.T/UU")(b"a", timeout=5) == b"a"
            assert [item async for item in channel.unary_stream("/t.T/US")(b"", timeout=5)] == [b"first", b"last"]
            assert await channel.stream_unary("/t.T/SU")(requests(), timeout=5) == b"ab"
            assert [item async for item in channel.stream_stream("/t.T/SS")(requests(), timeout=5)] == [b"a", b"b"]
            replace(path, tmp_path)


def test_no_channel_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(CertificateFileError, match=r"agent\.pem"):
        renewing_blocking_channel(tmp_path / "agent.pem", lambda: grpc.insecure_channel("127.0.0.1:1"))
