"""How trainers on this node reach Monitor: through the agent, which shows its certificate there.

Only the agent's certificate leads to Monitor from another machine. The trainer's own token passes through, and Monitor
checks it, too. Nothing but reports is forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from malletrain.agent.wire import Log, new_server, open_channel
from malletrain.common import environment as env
from malletrain.tls.files import CertificateFileError

SERVICE, METHOD = "malletrain.v1.MonitorService", "Report"
_PATH = f"/{SERVICE}/{METHOD}"
_TOKEN = "authorization"
_LOOPBACK = "127.0.0.1"
_MOST_REPORTERS = 256
_MOST_ADDRESSES = 4
"""There is one Monitor; it may have been given another address while the agent runs."""
_LONGEST_REPORT_BYTES = 64 << 20
"""Monitor may want shorter ones, and says so itself."""


class ReportForwarder:
    """Listens on loopback, and forwards reports to Monitor. Use from one event loop."""

    def __init__(self, certificate: Path, log: Log) -> None:
        """Listen on nothing yet.

        Args:
            certificate: The agent's certificate file.
            log: Called with a line for each error.
        """
        self._certificate = certificate
        self._log = log
        self._ports: dict[str, int] = {}
        self._named: Counter[int] = Counter()
        self._servers: list[grpc.aio.Server] = []
        self._starting: set[asyncio.Task[None]] = set()

    def address_for(self, monitor: str, user_id: int) -> str:
        """Address on this node that leads to a Monitor, as HOST:PORT.

        Args:
            monitor: HOST:PORT of Monitor for nodes.
            user_id: Whose workers ask; each user may name a few that nobody has named before.

        Raises:
            ValueError: the address is not HOST:PORT, or there have been too many.
            OSError: no port is free.
        """
        host, _, port = monitor.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{env.MONITOR_FOR_NODES}: expected HOST:PORT, got {monitor!r}")
        if monitor not in self._ports:
            if self._named[user_id] >= _MOST_ADDRESSES:
                raise ValueError(f"{env.MONITOR_FOR_NODES}: expected one of {_MOST_ADDRESSES} addresses at most")
            self._named[user_id] += 1
            self._ports[monitor] = self._listen(monitor)
        return f"{_LOOPBACK}:{self._ports[monitor]}"

    async def close(self) -> None:
        """End all reports and stop listening."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(server.stop(None) for server in self._servers))

    def _listen(self, monitor: str) -> int:
        async def forward(requests: AsyncIterator[bytes], context: Any) -> None:
            await self._forward(requests, context, monitor)

        server = new_server(_MOST_REPORTERS, _LONGEST_REPORT_BYTES)
        # Without functions that parse: what passes through is bytes.
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {METHOD: grpc.stream_stream_rpc_method_handler(forward)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = server.add_insecure_port(f"{_LOOPBACK}:0")
        except RuntimeError as error:
            raise OSError(f"no port on {_LOOPBACK} is free ({error})") from error
        self._servers.append(server)
        starting = asyncio.create_task(server.start())
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return port

    async def _forward(self, requests: AsyncIterator[bytes], context: Any, monitor: str) -> None:
        try:
            channel = open_channel(monitor, self._certificate, "monitor")
        except CertificateFileError as error:
            self._log(f"Monitor can't be reached: {error}")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the node's agent has no usable certificate")
            return
        shown = tuple((name, value) for name, value in context.invocation_metadata() if name == _TOKEN)
        async with channel:
            call: Any = channel.stream_stream(_PATH)(metadata=shown)
            sending = asyncio.create_task(_send_all(requests, call))
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    await context.write(response)
            except grpc.aio.AioRpcError as error:
                self._log(f"Monitor at {monitor}: {error.code().name}: {error.details()}")
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
            finally:
                sending.cancel()
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sending


async def _send_all(requests: AsyncIterator[bytes], call: Any) -> None:
    """Pass on what a trainer sends, no faster than Monitor takes it, and that it has ended its side."""
    with contextlib.suppress(
        asyncio.InvalidStateError, grpc.aio.AioRpcError
    ):  # the call has ended: its status says why
        async for request in requests:
            await call.write(request)
        await call.done_writing()
