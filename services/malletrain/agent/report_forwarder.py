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
from malletrain.common.tasks import start_task
from malletrain.tls.credentials import public_server_credentials
from malletrain.tls.files import CertificateFileError
from malletrain.tls.sources import CertificateSource

SERVICE, METHOD = "malletrain.v1.MonitorService", "Report"
_PATH = f"/{SERVICE}/{METHOD}"
_TOKEN = "authorization"
_LOOPBACK = "127.0.0.1"
_MAX_REPORTERS = 256
_MAX_ADDRESSES = 4
"""There is one Monitor; it may have been given another address while the agent runs."""
_MAX_REPORT_BYTES = 64 << 20
"""Monitor may want shorter ones, and says so itself."""


class ReportForwarder:
    """Listens on loopback, and forwards reports to Monitor. Use from one event loop."""

    def __init__(self, certificate: Path | CertificateSource, log: Log) -> None:
        """
        Args:
            certificate: The agent's certificate, a file or another source.
            log: Called with a line for each error.
        """
        self._certificate = certificate
        self._log = log
        self._only: str | None = None
        self._ports: dict[tuple[str, bool], int] = {}
        self._named: Counter[int] = Counter()
        self._servers: list[grpc.aio.Server] = []
        self._starting: set[asyncio.Task[object]] = set()

    def lead_only_to(self, monitor: str) -> None:
        """Forward reports to this Monitor only, whatever jobs name: an owner may have changed the job's supervisor.

        Args:
            monitor: HOST:PORT of Monitor for nodes; empty: there is none.
        """
        self._only = monitor

    def address_for(self, monitor: str, user_id: int, *, with_tls: bool) -> str:
        """Address on this node that leads to Monitor, as HOST:PORT.

        Args:
            monitor: HOST:PORT of Monitor for nodes, as the job names it. It counts only as long as the Scavenger, which
                may be of an earlier version, has not said where Monitor is.
            user_id: Whose workers ask; each user may name a few that nobody has named before.
            with_tls: Whether who reports knows the agent by its certificate; none does under a JobManager of 0.1.

        Raises:
            ValueError: the address is not HOST:PORT, there have been too many, or there is no Monitor for nodes.
            OSError: no port is free.
        """
        if self._only is not None:
            if not self._only:
                raise ValueError(f"{env.MONITOR_FOR_NODES}: expected none, since no Monitor listens for nodes")
            monitor = self._only
        host, _, port = monitor.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{env.MONITOR_FOR_NODES}: expected HOST:PORT, got {monitor!r}")
        if (monitor, with_tls) not in self._ports:
            if self._named[user_id] >= _MAX_ADDRESSES:
                raise ValueError(f"{env.MONITOR_FOR_NODES}: expected one of {_MAX_ADDRESSES} addresses at most")
            self._named[user_id] += 1
            self._ports[monitor, with_tls] = self._listen(monitor, with_tls=with_tls)
        return f"{_LOOPBACK}:{self._ports[monitor, with_tls]}"

    async def close(self) -> None:
        """End all reports and stop listening."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(server.stop(None) for server in self._servers))

    def _listen(self, monitor: str, *, with_tls: bool) -> int:
        async def forward(requests: AsyncIterator[bytes], context: Any) -> None:
            await self._forward(requests, context, monitor)

        server = new_server(_MAX_REPORTERS, _MAX_REPORT_BYTES)
        # Without functions that parse: what passes through is bytes.
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {METHOD: grpc.stream_stream_rpc_method_handler(forward)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            anywhere = f"{_LOOPBACK}:0"
            if with_tls:
                port = server.add_secure_port(anywhere, public_server_credentials(self._certificate))
            else:
                port = server.add_insecure_port(anywhere)
        except (RuntimeError, CertificateFileError) as error:
            raise OSError(f"no port on {_LOOPBACK} can be served ({error})") from error
        self._servers.append(server)
        starting = start_task(server.start(), "report forwarder", self._not_started)
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return port

    def _not_started(self, error: BaseException) -> None:
        self._log(f"reports can't be forwarded: {error!r}")

    async def _forward(self, requests: AsyncIterator[bytes], context: Any, monitor: str) -> None:
        try:
            channel = open_channel(monitor, self._certificate, "monitor")
        except CertificateFileError as error:
            self._log(f"Monitor can't be reached: {error}")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the node's agent has no usable certificate")
            return
        metadata = tuple((name, value) for name, value in context.invocation_metadata() if name == _TOKEN)
        async with channel:
            call: Any = channel.stream_stream(_PATH)(metadata=metadata)
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
