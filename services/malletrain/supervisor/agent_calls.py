"""Calls to agents: one stream of messages in both directions for each."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import grpc

from malletrain.tls.credentials import channel_credentials, peer_options
from malletrain.tls.files import CertificateFileError
from malletrain.tls.options import NODE_CHANNEL
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1 import agent_pb2_grpc

_ROLE = "agent"


class AgentCallError(Exception):
    """The agent can't be reached, refuses us, or is lost. The message says which."""


class AgentCall:
    """A session with an agent. One thread reads; any thread may send or close."""

    def __init__(self, address: str, certificate: Path | None) -> None:
        """Nothing happens before `responses` is followed.

        Args:
            address: HOST:PORT of the agent.
            certificate: The supervisors' certificate file; None if there is none.
        """
        self._address = address
        self._certificate = certificate
        self._outgoing: queue.SimpleQueue[pb.ControlWorkersRequest | None] = queue.SimpleQueue()
        self._channel: grpc.Channel | None = None

    def responses(self) -> Iterator[pb.ControlWorkersResponse | None]:
        """Connect, and follow what the agent reports until it ends the session: first None, once it has begun it.

        Raises:
            AgentCallError: it can't be reached, refuses us, or is lost.
        """
        self._channel = grpc.secure_channel(self._address, self._credentials(), (*NODE_CHANNEL, *peer_options(_ROLE)))
        call = agent_pb2_grpc.AgentServiceStub(self._channel).ControlWorkers(iter(self._outgoing.get, None))
        try:
            call.initial_metadata()
            if call.is_active():
                yield None
            yield from call
        except grpc.RpcError as error:
            raise AgentCallError(f"{call.code().name}: {call.details()}") from error

    def send(self, request: pb.ControlWorkersRequest) -> None:
        """Queue a message. It is dropped if the agent is lost."""
        self._outgoing.put(request)

    def end(self) -> None:
        """End this side once what is queued has been sent. The agent then ends the session."""
        self._outgoing.put(None)

    def close(self) -> None:
        """Disconnect at once."""
        self._outgoing.put(None)
        if self._channel is not None:
            self._channel.close()

    def _credentials(self) -> grpc.ChannelCredentials:
        if self._certificate is None:
            raise AgentCallError("agents accept only supervisors with a certificate, and this one has none")
        try:
            return channel_credentials(self._certificate)
        except CertificateFileError as error:
            raise AgentCallError(str(error)) from error
