"""A server of every service of ours whose handlers say nothing, behind the real checks; and tokens of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor

from malletrain.runtime.access import policy
from malletrain.runtime.access.identity import Identity, Role, UnauthenticatedError, current_caller
from malletrain.runtime.access.interceptor import AccessInterceptor, TokenChecker
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.server import ServiceHost

KEY = b"k" * 32
PASSED = "got past the checks"
UNDECLARED = "/malletrain.v1.JobManagerService/Undeclared"
"""A method that has a handler, and is in no proto."""

METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in policy.FILES
    for service in file.services_by_name.values()
    for method in service.methods
}


class Handlers(grpc.GenericRpcHandler):
    """A handler for every method: it notes who called, and ends the call with `PASSED`."""

    def __init__(self) -> None:
        self.callers: list[Identity | None] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = METHODS.get(handler_call_details.method)
        if method is None:
            if handler_call_details.method != UNDECLARED:
                return None
            method = METHODS["/malletrain.v1.JobManagerService/GetJob"]

        async def end(_request: Any, context: Any) -> None:
            self.callers.append(_caller())
            await context.abort(grpc.StatusCode.ABORTED, PASSED)

        async def end_stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            await end(request, context)
            yield b""

        return _factory(method)(end_stream if method.server_streaming else end)


def _caller() -> Identity | None:
    try:
        return current_caller()
    except UnauthenticatedError:
        return None


def _factory(method: MethodDescriptor) -> Any:
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return kinds[method.client_streaming, method.server_streaming]


@dataclass
class CheckedServer:
    """The server, and what decides who gets in."""

    address: str
    tokens: Tokens
    revoked: RevocationFile
    handlers: Handlers

    def token(self, role: Role, lifespan: float = 600.0, user: str = "ada") -> str:
        job, audience = {Role.JOB: ("j000001", ""), Role.SERVICE: ("", "job_manager")}.get(role, ("", ""))
        return self.tokens.sign(user, role, lifespan, job, audience)[0]


@asynccontextmanager
async def checked_server(folder: Path, *, open_reflection: bool = True) -> AsyncIterator[CheckedServer]:
    tokens, revoked = Tokens(KEY, SystemClock()), RevocationFile(folder, SystemClock())
    host = ServiceHost(
        "127.0.0.1:0", AccessInterceptor(TokenChecker(tokens, revoked, "job_manager"), open_reflection=open_reflection)
    )
    handlers = Handlers()

    def register(_: object, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((handlers,))

    host.add("malletrain.v1.AccessService", register, handlers)
    port = await host.start()
    try:
        yield CheckedServer(f"127.0.0.1:{port}", tokens, revoked, handlers)
    finally:
        await host.stop(0)


async def call(channel: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Code and details with which a call ends. A stream of requests is opened and nothing is sent in it."""
    described = METHODS.get(method, METHODS["/malletrain.v1.JobManagerService/GetJob"])
    try:
        if described.client_streaming:
            await channel.stream_stream(method)(metadata=metadata, timeout=10).read()
        elif described.server_streaming:
            async for _ in channel.unary_stream(method)(b"", metadata=metadata, timeout=10):
                pass
        else:
            await channel.unary_unary(method)(b"", metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""
