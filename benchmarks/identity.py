"""What the check of identity costs: `python benchmarks/identity.py`.

The same unary call, once as services make and check it on loopback, once with neither, and once as they make and check
it off loopback, over TLS; the calls of all alternate, so that a busy machine slows all. Also the check alone, for a
token that was seen before and for a new one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from typing_extensions import override

from malletrain.runtime.access.credentials import ServiceCredential, header_of, showing
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.interceptor import AccessInterceptor, TokenChecker
from malletrain.runtime.access.pki import ensure_certificate, publish_authority
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.peer import Peer
from malletrain.runtime.server import ServiceHost
from malletrain.tls.credentials import public_server_credentials
from malletrain.v1 import allocator_pb2, allocator_pb2_grpc

CALLS = 3000
WARM_UP = 300
CHECKS = 20_000


class Unchecked(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """What a server without the check would have."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The handler as it is."""
        return await continuation(handler_call_details)


class Plans(allocator_pb2_grpc.AllocatorServiceServicer):
    """Has no plan."""

    @override
    async def GetPlan(self, request: Any, context: Any) -> allocator_pb2.GetPlanResponse:
        """Nothing."""
        del request, context
        return allocator_pb2.GetPlanResponse()


@asynccontextmanager
async def serving(
    interceptor: grpc.aio.ServerInterceptor, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[str]:
    """Address of a server. With credentials it counts as off loopback, though nothing leaves the machine."""
    ip = "127.0.0.1" if credentials is None else "127.0.0.2"
    host = ServiceHost(f"{ip}:0", interceptor, credentials=credentials)
    host.add("malletrain.v1.AllocatorService", allocator_pb2_grpc.add_AllocatorServiceServicer_to_server, Plans())
    port = await host.start()
    try:
        yield f"{ip}:{port}"
    finally:
        await host.stop(0)


async def seconds_of(stub: Any) -> float:
    """Seconds that one call takes."""
    began = time.perf_counter()
    await stub.GetPlan(allocator_pb2.GetPlanRequest())
    return time.perf_counter() - began


def plain(address: str, credential: ServiceCredential | None) -> grpc.aio.Channel:
    """A channel without TLS."""
    channel = grpc.aio.insecure_channel(address)
    return channel if credential is None else showing(channel, credential.towards("allocator"))


async def compare(tokens: Tokens, checker: TokenChecker, folder: Path) -> tuple[list[float], list[float], list[float]]:
    """Seconds of calls with and without identity, and over TLS with it."""
    certificate = ensure_certificate(folder, "allocator", SystemClock(), 3600)
    publish_authority(folder, folder / "ca.pem", SystemClock())
    credential = ServiceCredential(tokens, "benchmark", SystemClock())
    checked = AccessInterceptor(checker, open_reflection=True)
    async with (
        serving(checked) as checked_address,
        serving(Unchecked()) as plain_address,
        serving(checked, public_server_credentials(certificate)) as encrypted_address,
        plain(checked_address, credential) as with_identity,
        plain(plain_address, None) as without,
        open_channel(Peer("allocator", encrypted_address, folder / "ca.pem", "allocator"), credential) as encrypted,
    ):
        stubs = [allocator_pb2_grpc.AllocatorServiceStub(channel) for channel in (with_identity, without, encrypted)]
        found: tuple[list[float], list[float], list[float]] = ([], [], [])
        for _ in range(WARM_UP + CALLS):
            for stub, seconds in zip(stubs, found, strict=True):
                seconds.append(await seconds_of(stub))
        return found[0][WARM_UP:], found[1][WARM_UP:], found[2][WARM_UP:]


def median_of(check: Callable[[], object], times: int) -> float:
    """Median seconds of a check."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        check()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Measure and print."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Tokens(secrets.token_hex(32).encode(), clock)
        checker = TokenChecker(tokens, RevocationFile(Path(folder), clock), "allocator")
        with_identity, without, encrypted = asyncio.run(compare(tokens, checker, Path(folder)))
        credential = ServiceCredential(tokens, "benchmark", clock).towards("allocator")
        shown = header_of(credential)
        known = median_of(lambda: checker.identify(shown), CHECKS)
        token = credential.token()
        new = median_of(lambda: tokens.verify(token), CHECKS // 10)
        signed = median_of(lambda: tokens.sign("benchmark", Role.SERVICE, 600.0, audience="allocator"), CHECKS // 10)
    pair = [statistics.median(seconds) for seconds in (with_identity, without, encrypted)]
    figures = {
        "call_with_identity_us": pair[0] * 1e6,
        "call_without_us": pair[1] * 1e6,
        "call_over_tls_us": pair[2] * 1e6,
        "ratio": pair[0] / pair[1],
        "ratio_of_tls": pair[2] / pair[0],
        "difference_us": statistics.median(a - b for a, b in zip(with_identity, without, strict=True)) * 1e6,
        "check_of_known_token_us": known * 1e6,
        "check_of_new_token_us": new * 1e6,
        "signature_us": signed * 1e6,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
