"""The agent's stream to the Scavenger's registry: who it is, that it is alive, that it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from malletrain.agent.peer_queue import PeerQueue
from malletrain.agent.wire import Log, open_channel
from malletrain.common.tasks import Crew
from malletrain.tls.files import CertificateFileError
from malletrain.tls.sources import CertificateSource
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1 import agent_pb2_grpc

_HEARTBEAT_SECONDS = 5.0
_RETRY_SECONDS = 0.3
_MAX_WAITING = 16


@dataclass(frozen=True)
class RegistryAddress:
    """The address to which an agent reports that it is there.

    Attributes:
        address: HOST:PORT of the registry.
        certificate: The agent's certificate, a file or another source.
    """

    address: str
    certificate: Path | CertificateSource


class Registration:
    """Keeps one agent registered. Use from one event loop."""

    def __init__(
        self,
        registry: RegistryAddress,
        count_workers: Callable[[], int],
        on_leave: Callable[[], None],
        log: Log,
        on_monitor: Callable[[str], None] = lambda _: None,
        on_certificate: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            count_workers: Returns how many workers there are on the node.
            on_leave: Called when the registry tells the agent to leave.
            log: Called with a line for each error.
            on_monitor: Called with the address at which the registry says that Monitor is reached.
            on_certificate: Called with a renewed certificate, in PEM.
        """
        self._on_monitor = on_monitor
        self._on_certificate = on_certificate
        self._disconnected_at = time.monotonic()
        self._refused_at: float | None = None
        self._was_heard = False
        self._registry = registry
        self._count_workers = count_workers
        self._on_leave = on_leave
        self._log = log
        self._leaving = False
        self._queue: PeerQueue[pb.RegisterRequest] | None = None
        self._said = ""

    def disconnected_seconds(self, now: float) -> float:
        """How long there has been no connection; 0 while there is one.

        Args:
            now: Monotonic time in seconds.
        """
        return now - self._disconnected_at if self._queue is None else 0.0

    def refused_seconds(self, now: float) -> float:
        """How long the registry has answered, and each time refused this agent; 0 where it has not.

        Args:
            now: Monotonic time in seconds.
        """
        return 0.0 if self._refused_at is None else now - self._refused_at

    async def run(self, introduction: pb.AgentIntroduction) -> None:
        """Stay registered, until cancelled."""
        while True:
            try:
                await self._register(introduction)
            except (grpc.aio.AioRpcError, CertificateFileError) as error:
                self._note_refusal(error)
                self._log_error(error.details() or "" if isinstance(error, grpc.aio.AioRpcError) else str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    def report_leaving(self) -> None:
        """Report that the node is wanted back, now or as soon as the registry can be reached."""
        self._leaving = True
        self._send(pb.RegisterRequest(leaving=pb.AgentLeaving()))

    async def report_gone(self, seconds: float) -> None:
        """Report that nothing is left on the node; wait until the registry has heard it, but no longer than this."""
        queue = self._queue
        if queue is None:
            return
        queue.put(pb.RegisterRequest(gone=pb.AgentGone()))
        queue.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._queue is queue:
                    await asyncio.sleep(0.001)

    async def _register(self, introduction: pb.AgentIntroduction) -> None:
        """One stream, until it ends.

        Raises:
            grpc.aio.AioRpcError: it is lost or refused.
            CertificateFileError: there is no usable certificate.
        """
        queue: PeerQueue[pb.RegisterRequest] = PeerQueue(_MAX_WAITING)
        async with open_channel(self._registry.address, self._registry.certificate, "scavenger") as channel:
            call = agent_pb2_grpc.AgentRegistryServiceStub(channel).Register()
            # What ends the sending of heartbeats ends the stream, and the next one begins.
            crew = Crew(call.cancel)
            crew.start(_send_all(queue, call), "sending to the registry", may_end=True)
            try:
                queue.put(pb.RegisterRequest(introduction=self._with_clock(introduction)))
                await call.initial_metadata()
                if not call.done():
                    self._connected(queue)
                crew.start(self._send_heartbeats(queue), "heartbeats")
                while isinstance(response := await call.read(), pb.RegisterResponse):
                    if response.HasField("leave"):
                        self._on_leave()
                    if response.HasField("monitor"):
                        self._on_monitor(response.monitor.address)
                    if response.HasField("certificate"):
                        self._on_certificate(response.certificate.pem)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if crew.failure is None or task is None or task.cancelling():
                    raise
                # Not this task was cancelled, but the call that it reads.
                self._log_error(f"the stream has failed: {crew.failure!r}")
            finally:
                if self._queue is queue:
                    self._queue = None
                    self._disconnected_at = time.monotonic()
                call.cancel()
                await crew.close()

    def _with_clock(self, introduction: pb.AgentIntroduction) -> pb.AgentIntroduction:
        """With what this node's clock says, until it has been heard once: later, there may be workers here."""
        if self._was_heard:
            return introduction
        dated = pb.AgentIntroduction()
        dated.CopyFrom(introduction)
        dated.time.GetCurrentTime()
        return dated

    def _note_refusal(self, error: Exception) -> None:
        refused = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.PERMISSION_DENIED
        if not refused:
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = time.monotonic()

    def _connected(self, queue: PeerQueue[pb.RegisterRequest]) -> None:
        self._queue = queue
        self._was_heard = True
        self._refused_at = None
        self._said = ""
        if self._leaving:
            self._send(pb.RegisterRequest(leaving=pb.AgentLeaving()))

    def _send(self, request: pb.RegisterRequest) -> None:
        if self._queue is not None:
            self._queue.put(request)

    async def _send_heartbeats(self, queue: PeerQueue[pb.RegisterRequest]) -> None:
        while True:
            if not len(queue):  # a registry that does not read needs no second heartbeat
                queue.put(pb.RegisterRequest(heartbeat=pb.AgentHeartbeat(workers=self._count_workers())))
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    def _log_error(self, error: str) -> None:
        """Log an error, unless it is the same as the last one."""
        if error != self._said:
            self._said = error
            self._log(f"Scavenger at {self._registry.address}: {error}")


async def _send_all(queue: PeerQueue[pb.RegisterRequest], call: Any) -> None:
    # When the call has ended, its status says why.
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        while (request := await queue.next()) is not None:
            await call.write(request)
        await call.done_writing()
