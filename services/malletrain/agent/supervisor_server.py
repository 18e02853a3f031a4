"""Serves the supervisors of jobs, each in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from malletrain.agent.environment import JobOwner, owner_of
from malletrain.agent.peer_queue import PeerQueue
from malletrain.agent.session import SupervisorSession, WorkerRequestError
from malletrain.agent.wire import Log, Malformed, Parser, new_server
from malletrain.common.accounts import AccountError
from malletrain.tls.credentials import peer_job, peer_roles, server_credentials
from malletrain.tls.sources import CertificateSource
from malletrain.v1 import agent_pb2 as pb

SERVICE = "malletrain.v1.AgentService"
_ROLE = "supervisor"
_MAX_SESSIONS = 256
_OWED_SECONDS = 0.01

Send = Callable[[pb.ControlWorkersResponse], None]
Code = grpc.StatusCode


class SupervisorServer:
    """The gRPC server of an agent.

    Attributes:
        sessions: Sessions that are open, and those whose workers have not ended yet.
    """

    def __init__(self, open_session: Callable[[Send, JobOwner | None], SupervisorSession], log: Log) -> None:
        """Nothing happens before `start`.

        Args:
            open_session: Makes a session that sends by this function, for the workers of this owner.
            log: Called with a line about each refusal.
        """
        self.sessions: set[SupervisorSession] = set()
        self._open_session = open_session
        self._log = log
        self._queues: dict[SupervisorSession, PeerQueue[pb.ControlWorkersResponse]] = {}
        self._server = new_server(_MAX_SESSIONS)
        handler = grpc.stream_stream_rpc_method_handler(
            self._control,
            Parser(pb.ControlWorkersRequest),
            pb.ControlWorkersResponse.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"ControlWorkers": handler})
        self._server.add_generic_rpc_handlers((handlers,))

    async def start(self, listen: str, certificate: Path | CertificateSource) -> int:
        """Serve.

        Args:
            listen: Address to listen on.
            certificate: The agent's certificate, a file or another source.

        Returns:
            The port.

        Raises:
            CertificateFileError: the certificate can't be used.
            RuntimeError: the address can't be used.
        """
        host = f"[{listen}]" if ":" in listen.strip("[]") else listen
        port = self._server.add_secure_port(f"{host}:0", server_credentials(certificate))
        await self._server.start()
        return port

    async def stop(self, grace: float) -> None:
        """End all sessions once what was to be sent has been sent, and after `grace` seconds in any case."""
        for queue in self._queues.values():
            queue.close()
        await self._server.stop(grace)

    def poll(self) -> None:
        """Report what has changed in all sessions. One whose supervisor is gone is over once no worker is left."""
        for session, queue in list(self._queues.items()):
            if queue.overflowed and not session.ended:
                session.ended = True
                session.kill()
        for session in list(self.sessions):
            session.poll()
            if session.ended and not len(session):
                session.kill()  # what the workers have left behind
                self.sessions.discard(session)

    async def _control(self, requests: AsyncIterator[pb.ControlWorkersRequest | Malformed], context: Any) -> None:
        """Serve one supervisor. When it is gone, its workers are killed."""
        roles = peer_roles(context.auth_context())
        if _ROLE not in roles:
            await self._refuse(
                context, Code.PERMISSION_DENIED, f"expected the certificate of a {_ROLE}, got {_words(roles)}"
            )
        try:
            owner = owner_of(peer_job(context.auth_context()))
        except AccountError as error:
            await self._refuse(context, Code.FAILED_PRECONDITION, str(error))
            return
        queue: PeerQueue[pb.ControlWorkersResponse] = PeerQueue()
        session = self._open_session(queue.put, owner)
        self.sessions.add(session)
        self._queues[session] = queue
        reading = asyncio.create_task(self._read(session, requests))
        reading.add_done_callback(lambda _: queue.close())
        try:
            # By this the supervisor knows that it is connected.
            await context.send_initial_metadata(())
            while (response := await queue.next()) is not None:
                await context.write(response)
            await self._end(reading, queue, context)
        finally:
            del self._queues[session]
            session.ended = True
            session.kill()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, WorkerRequestError):
                await reading

    async def _read(
        self, session: SupervisorSession, requests: AsyncIterator[pb.ControlWorkersRequest | Malformed]
    ) -> None:
        """Do what a supervisor asks for, until it ends its side.

        Raises:
            WorkerRequestError: a request can't be understood.
        """
        async for request in requests:
            if isinstance(request, Malformed):
                raise WorkerRequestError(f"expected a ControlWorkersRequest ({request.error})")
            if session.ended:
                return
            try:
                session.handle(request)
            except OSError as error:
                self._log(f"a supervisor's request has failed: {error}")
        while session.owes_answers:
            await asyncio.sleep(_OWED_SECONDS)

    async def _end(
        self, reading: asyncio.Task[None], queue: PeerQueue[pb.ControlWorkersResponse], context: Any
    ) -> None:
        """End a call with a status that says why."""
        if queue.overflowed:
            await self._refuse(context, Code.RESOURCE_EXHAUSTED, "the supervisor does not read what it is sent")
        if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
            if not isinstance(error, WorkerRequestError):
                raise error
            await self._refuse(context, Code.INVALID_ARGUMENT, str(error)[:512])

    async def _refuse(self, context: Any, code: grpc.StatusCode, details: str) -> None:
        self._log(f"refused {context.peer()}: {details}")
        await context.abort(code, details)


def _words(roles: frozenset[str]) -> str:
    return f"that of {', '.join(sorted(roles))}" if roles else "none of ours"
