"""Where node agents report: which agents there are, and on which nodes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc.aio
import structlog
from cryptography import x509
from google.protobuf.unknown_fields import UnknownFieldSet
from typing_extensions import override

from malletrain.common.tasks import lasting, start_task
from malletrain.runtime.access.audit import audit
from malletrain.runtime.access.identity import PermissionDeniedError
from malletrain.runtime.access.interceptor import PeerInterceptor
from malletrain.runtime.access.issuing import half_time
from malletrain.runtime.admission.connection_limiter import ConnectionLimiter
from malletrain.runtime.admission.machines import MachineCalls
from malletrain.runtime.admission.peers import PeerNames
from malletrain.runtime.clock import Clock, SystemClock
from malletrain.runtime.error_interceptor import ErrorInterceptor
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.limits import ServerLimits
from malletrain.runtime.node_names import check_node_name
from malletrain.runtime.server import server_options
from malletrain.scavenger.acquisition.node_certificates import NodeCertificates
from malletrain.scavenger.machine.slow_nodes import MAX_SECONDS, NodeSpeed, SpeedTold
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.telemetry.metrics import AGENT_LEFT, ReclaimTimer
from malletrain.tls.channels import KEEPALIVE
from malletrain.tls.credentials import peer_certificate, peer_node, server_credentials
from malletrain.tls.files import CertificateFileError, parse_certificate_file
from malletrain.tls.names import PeerNode, node_name
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1 import agent_pb2_grpc

LOST_SECONDS = 2.0
"""An agent whose connection breaks reconnects within a third of a second. One that does not has died."""
_REGISTER = "/malletrain.v1.AgentRegistryService/Register"
_MAX_NAME_LENGTH = 256
_MAX_VERSION_LENGTH = 64
_MAX_UNFIT_LENGTH = 400


class _AgentStream:
    """One stream of an agent: it can be told to leave, get a certificate, and the stream can be ended."""

    def __init__(self, renew_at: float = math.inf) -> None:
        self.told_to_leave = False
        self.renew_at = renew_at
        self._certificate: bytes | None = None
        self._ended = False
        self._changed = asyncio.Event()

    def tell_to_leave(self) -> None:
        self.told_to_leave = True
        self._changed.set()

    def renew(self, certificate: bytes, renew_at: float) -> None:
        self._certificate = certificate
        self.renew_at = renew_at
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def responses(self) -> AsyncIterator[pb.RegisterResponse]:
        has_sent = False
        while not self._ended:
            if self.told_to_leave and not has_sent:
                has_sent = True
                yield pb.RegisterResponse(leave=pb.LeaveNode())
                continue
            if self._certificate is not None:
                certificate, self._certificate = self._certificate, None
                yield pb.RegisterResponse(certificate=pb.AgentCertificate(pem=certificate))
                continue
            self._changed.clear()
            await self._changed.wait()


class AgentRegistry(agent_pb2_grpc.AgentRegistryServiceServicer):
    """Serves the agents that report from nodes, in one event loop."""

    def __init__(
        self,
        certificate: Path,
        on_change: Callable[[], None],
        reclaim_timer: ReclaimTimer = lambda *_: None,
        limits: ServerLimits | None = None,
        monitor: str | None = None,
        certificates: NodeCertificates | None = None,
        expects: Callable[[str], bool] = lambda _: True,
        clock: Clock | None = None,
        most_clock_seconds: float = math.inf,
        speed_told: SpeedTold = lambda *_: None,
    ) -> None:
        """
        Args:
            certificate: The Scavenger's certificate file. Agents must have one of the same installation.
            on_change: Called after every change of `present` or `leaving`.
            reclaim_timer: Told how long agents take to leave.
            limits: What agents are granted.
            monitor: HOST:PORT at which agents reach Monitor, as they are told; None: they are told nothing.
            certificates: Renews those of agents; None: they are not renewed, and none is accepted that names no node.
            expects: Whether there may be a placeholder on a node. Where there is none, the certificate of one is not
                accepted: it has ended.
            clock: Wall clock; None: the system's.
            most_clock_seconds: By how much a node's clock may differ from it before its first worker.
            speed_told: Told how fast nodes are, each time that an agent says so.
        """
        self._clock = clock or SystemClock()
        self._most_clock_seconds = most_clock_seconds
        self._speed_told = speed_told
        self._expects = expects
        self._certificates = certificates
        self._histories: dict[str, NodeHistory] = {}
        self._monitor = monitor
        self._certificate = certificate
        self._on_change = on_change
        self._limits = limits or ServerLimits()
        self._present: dict[str, RegisteredAgent] = {}
        self._reclaim_timer = reclaim_timer
        self._leaving: dict[str, float] = {}
        self._departed: list[RegisteredAgent] = []
        self._unfit: dict[str, str] = {}
        self._streams: dict[str, _AgentStream] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._server: grpc.aio.Server | None = None
        self._watching: asyncio.Task[object] | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def present(self) -> Mapping[str, RegisteredAgent]:
        """Agents that have reported and are not leaving, by node."""
        return {node: entry for node, entry in self._present.items() if node not in self._leaving}

    @property
    def leaving(self) -> list[RegisteredAgent]:
        """Agents that were told to leave, by the scheduler or by us, and have not left."""
        return [entry for node, entry in self._present.items() if node in self._leaving]

    def ask_to_leave(self, nodes: Iterable[str]) -> None:
        """Tell agents to leave, with their workers. One whose connection is lost is told when it reconnects."""
        for node in nodes:
            if node in self._present and node not in self._leaving:
                self._note_leaving(node)
                self._tell_to_leave(node)
                self._on_change()

    def _note_leaving(self, node: str) -> None:
        self._leaving.setdefault(node, asyncio.get_running_loop().time())

    def _tell_to_leave(self, node: str) -> None:
        if (stream := self._streams.get(node)) is not None:
            self._log.info("agent asked to leave", node=node)
            stream.tell_to_leave()

    def take_departed(self) -> list[RegisteredAgent]:
        """Agents that have left since the last call, or were lost."""
        gone, self._departed = self._departed, []
        return gone

    def take_unfit(self) -> dict[str, str]:
        """Nodes whose agents have said since the last call that no worker must start there, and why."""
        unfit, self._unfit = self._unfit, {}
        return unfit

    async def open(self, host: str, port: int) -> int:
        """Listen for agents.

        Returns:
            The port.

        Raises:
            OSError: the address or the certificate can't be used.
        """
        options = dict(server_options(self._limits)) | dict(KEEPALIVE)
        # Each agent has one call: counted by machine, since there may be any number of nodes.
        peers, most = PeerNames(f"{host}:{port}"), self._limits.max_connections_per_peer
        machines = MachineCalls(peers, most, self._limits.first_message_seconds)
        server = grpc.aio.server(
            interceptors=[machines, PeerInterceptor(with_tls=True), ErrorInterceptor()],
            options=tuple(options.items()),
        )
        agent_pb2_grpc.add_AgentRegistryServiceServicer_to_server(self, server)
        try:
            bound_port = server.add_secure_port(f"{host}:{port}", server_credentials(self._certificate))
        except (RuntimeError, CertificateFileError) as error:
            raise OSError(f"can't listen for agents on {host}:{port} ({error})") from error
        await server.start()
        self._server, peers.port = server, bound_port
        self._watching = start_task(
            lasting(ConnectionLimiter(peers, most).watch(), "connections"), "agents' connections"
        )
        return bound_port

    async def close(self) -> None:
        """Stop listening. Agents go on, and try to connect again."""
        for stream in self._streams.values():
            stream.end()
        self._streams.clear()
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            await self._server.stop(None)
        for timer in self._timers.values():
            timer.cancel()

    @override
    async def Register(
        self, request_iterator: AsyncIterator[pb.RegisterRequest], context: Any
    ) -> AsyncIterator[pb.RegisterResponse]:
        """Serve one agent, until it has gone or is lost, or until another one reports from its node."""
        auth = context.auth_context()
        request = await anext(aiter(request_iterator), None)
        entry = self._checked(_read_introduction(request, context.peer(), peer_node(auth)), request)
        self._admit(entry, context.peer())
        stream = _AgentStream(_renewal_time(peer_certificate(auth)) if entry.name else math.inf)
        # However the call ends, also if it is cancelled while a response waits to be sent.
        context.add_done_callback(lambda _: self._lose(entry, stream))
        self._add(entry, stream)
        await context.send_initial_metadata(())
        reading = asyncio.create_task(self._read(entry.node, stream, request_iterator), name=f"agent of {entry.node}")
        reading.add_done_callback(lambda _: stream.end())
        try:
            if self._monitor is not None:
                yield pb.RegisterResponse(monitor=pb.MonitorForNodes(address=self._monitor))
            async for response in stream.responses():
                yield response
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, InvalidInputError):
                await reading

    def _checked(self, entry: RegisteredAgent, request: pb.RegisterRequest | None) -> RegisteredAgent:
        """The agent, with what its node's clock says against the node."""
        if request is None or entry.unfit or not request.introduction.HasField("time"):
            return entry
        agent_time = request.introduction.time
        reason = wrong_clock(agent_time.seconds + agent_time.nanos / 1e9, self._clock.time(), self._most_clock_seconds)
        return replace(entry, unfit=reason)

    def _admit(self, entry: RegisteredAgent, peer: str) -> None:
        """Refuse an agent that is not what it says.

        Raises:
            PermissionDeniedError: it is not.
        """
        history = self._histories.get(entry.node, UNSEEN)
        certificates = self._certificates
        accepts_shared = certificates is not None and certificates.accepts_shared
        refusal = refusal_of(
            entry,
            history,
            self._present.values(),
            accepts_shared=accepts_shared,
            is_expected=self._expects(entry.node),
        )
        if refusal:
            audit(_REGISTER, None, None, peer, refusal)
            raise PermissionDeniedError(refusal)
        if entry.certificate is not None:
            self._histories[entry.node] = history.after(entry)
            if certificates is not None and entry.certificate.placeholder is not None:
                certificates.note_number(entry.certificate.placeholder)

    async def keep_certificates(self) -> None:
        """Renew the certificates of agents, and see the end of the one that agents of 0.1 share, until cancelled."""
        certificates = self._certificates
        while certificates is not None:
            try:
                if await asyncio.to_thread(certificates.expire_shared):
                    self.ask_sharing_to_leave()
                await self.renew_certificates()
            except (SourceError, OSError) as error:
                self._log.error("certificates of agents not renewed", error=str(error))
            await asyncio.sleep(certificates.look_seconds)

    async def renew_certificates(self) -> None:
        """Send agents whose certificate has had half of its lifespan another one.

        Raises:
            SourceError: the CA can't be used.
        """
        certificates = self._certificates
        for node, stream in list(self._streams.items()):
            entry = self._present.get(node)
            if certificates is None or entry is None or entry.certificate is None:
                continue
            if not certificates.is_due(stream.renew_at):
                continue
            made = await asyncio.to_thread(certificates.renew, node, entry.certificate.placeholder)
            content = made.encode("ascii")
            stream.renew(content, _renewal_time(parse_certificate_file(content, Path(node)).certificate))
            self._log.info("agent's certificate renewed", node=node)

    def ask_sharing_to_leave(self) -> None:
        """Tell agents of 0.1 to leave: by the certificate that they share, nobody reaches them any more."""
        self.ask_to_leave([node for node, entry in self._present.items() if entry.certificate is None])

    def _add(self, entry: RegisteredAgent, stream: _AgentStream) -> None:
        if (earlier := self._streams.get(entry.node)) is not None:
            earlier.end()
        self._streams[entry.node] = stream
        if self._present.get(entry.node, entry).placeholder != entry.placeholder:
            self._forget(entry.node)
        self._present[entry.node] = entry
        if entry.speed is not None:
            self._speed_told(entry.node, entry.speed)
        if entry.unfit and entry.node not in self._leaving:
            self._log.warning("node is not well", node=entry.node, reason=entry.unfit)
            self._unfit[entry.node] = entry.unfit
            self._note_leaving(entry.node)
        if entry.node in self._leaving:
            self._tell_to_leave(entry.node)
        self._log.info(
            "agent here",
            node=entry.node,
            placeholder=entry.placeholder,
            address=entry.address,
            version=entry.version,
        )
        self._on_change()

    async def _read(self, node: str, stream: _AgentStream, requests: AsyncIterator[pb.RegisterRequest]) -> None:
        """Take in what an agent tells, until it has gone.

        Raises:
            InvalidInputError: it can't be understood.
        """
        async for request in requests:
            if self._streams.get(node) is not stream:
                return  # another one has reported from the node
            match request.WhichOneof("request"):
                case "heartbeat":
                    self._note_workers(node, request.heartbeat.workers)
                case "leaving":
                    self._log.info("node is wanted back", node=node)
                    self._note_leaving(node)
                    self._on_change()
                case "gone":
                    self._forget(node)
                    self._on_change()
                    return
                case None if len(UnknownFieldSet(request)):
                    self._log.debug("an agent of a later version tells what is not known here", node=node)
                case other:
                    raise InvalidInputError("request", "heartbeat, leaving or gone", other)

    def _note_workers(self, node: str, workers: int) -> None:
        entry = self._present.get(node)
        if entry is not None and entry.workers != workers:
            self._present[node] = replace(entry, workers=workers)
            self._on_change()

    def _lose(self, entry: RegisteredAgent, stream: _AgentStream) -> None:
        """Note that a stream has ended. Its agent may come back."""
        if self._streams.get(entry.node) is stream:
            del self._streams[entry.node]
            loop = asyncio.get_running_loop()
            self._timers[entry.node] = loop.call_later(LOST_SECONDS, self._expire, entry)

    def _expire(self, entry: RegisteredAgent) -> None:
        if entry.node not in self._streams and self._present.get(entry.node, entry).placeholder == entry.placeholder:
            self._forget(entry.node)
            self._on_change()

    def _forget(self, node: str) -> None:
        entry = self._present.pop(node, None)
        since = self._leaving.pop(node, None)
        if entry is not None:
            if since is not None:
                self._reclaim_timer(AGENT_LEFT, asyncio.get_running_loop().time() - since)
            self._log.info("agent disconnected", node=node, placeholder=entry.placeholder)
            self._departed.append(entry)


def agent_placeholder_id(node: str) -> str:
    """Identifier that is used for an agent without a placeholder."""
    return f"agent on {node}"


def _renewal_time(certificate: bytes) -> float:
    """When half of a certificate's lifespan is over, in seconds since the epoch."""
    parsed = x509.load_pem_x509_certificate(certificate)
    return half_time(parsed)


def _read_introduction(request: pb.RegisterRequest | None, peer: str, certificate: PeerNode | None) -> RegisteredAgent:
    """The agent that a stream begins with.

    Raises:
        InvalidInputError: it does not begin with an introduction that can be used.
    """
    if request is None or not request.HasField("introduction"):
        raise InvalidInputError("request", "an introduction first", request and request.WhichOneof("request"))
    introduction = request.introduction
    check_node_name(introduction.node, "introduction.node")
    if not 0 < introduction.port <= 65535:
        raise InvalidInputError("introduction.port", "1 to 65535", introduction.port)
    if len(introduction.placeholder) > _MAX_NAME_LENGTH:
        raise InvalidInputError(
            "introduction.placeholder", f"at most {_MAX_NAME_LENGTH} characters", introduction.placeholder
        )
    if len(introduction.version) > _MAX_VERSION_LENGTH:
        raise InvalidInputError(
            "introduction.version", f"at most {_MAX_VERSION_LENGTH} characters", introduction.version
        )
    host = unquote(peer.partition(":")[2].rpartition(":")[0])
    placeholder = introduction.placeholder or agent_placeholder_id(introduction.node)
    return RegisteredAgent(
        introduction.node,
        f"{host}:{introduction.port}",
        placeholder,
        version=introduction.version,
        certificate=certificate,
        unfit=introduction.unfit[:_MAX_UNFIT_LENGTH],
        speed=speed_of(introduction),
    )


def speed_of(introduction: pb.AgentIntroduction) -> NodeSpeed | None:
    """How fast the agent's node is; None: it does not say.

    Raises:
        InvalidInputError: the figures can't be times.
    """
    if not introduction.HasField("speed"):
        return None
    speed = NodeSpeed(introduction.speed.hash_seconds, introduction.speed.copy_seconds)
    if not speed.valid:
        raise InvalidInputError("introduction.speed", f"times above 0, at most {MAX_SECONDS:g} s", tuple(speed))
    return speed


@dataclass(frozen=True)
class RegisteredAgent:
    """An agent that has reported.

    Attributes:
        address: HOST:PORT on which it serves supervisors.
        placeholder: The batch job that it runs in.
        workers: How many workers it has.
        version: Version of MalleTrain that it runs; empty: 0.1.0 or earlier.
        certificate: What its certificate says of its node; None: it is the one that agents of 0.1 share.
        unfit: Why no worker must start on its node; empty: nothing is known against it.
        speed: How fast its node is; None: it has not been measured.
    """

    node: str
    address: str
    placeholder: str
    workers: int = 0
    version: str = ""
    certificate: PeerNode | None = None
    unfit: str = ""
    speed: NodeSpeed | None = None

    @property
    def name(self) -> str:
        """DNS name that only the certificate of this node's agent has; empty if it has none of its own."""
        return "" if self.certificate is None else self.certificate.name


def wrong_clock(agent_seconds: float, now: float, most_seconds: float) -> str:
    """Why no worker must start on a node by its clock; empty: it is right.

    Args:
        agent_seconds: What the node's clock has said, in seconds since the epoch.
        now: What ours says.
        most_seconds: By how much they may differ, the way to us included.
    """
    ahead = agent_seconds - now
    if abs(ahead) <= most_seconds:
        return ""
    return f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the head node's"


@dataclass(frozen=True)
class NodeHistory:
    """What has been seen of a node's agents.

    Attributes:
        newest: Highest number of a placeholder whose agent has reported; 0: none has.
        has_own: Whether an agent has reported with a certificate of the node's own.
    """

    newest: int = 0
    has_own: bool = False

    def after(self, agent: RegisteredAgent) -> NodeHistory:
        """The history once this agent has reported."""
        certificate = agent.certificate
        if certificate is None:
            return self
        return NodeHistory(max(self.newest, certificate.placeholder or 0), has_own=True)


UNSEEN = NodeHistory()
"""Of a node no agent has reported."""


def refusal_of(
    agent: RegisteredAgent,
    history: NodeHistory,
    present: Iterable[RegisteredAgent],
    *,
    accepts_shared: bool,
    is_expected: bool = True,
) -> str:
    """Why an agent is refused; empty: it is admitted.

    Args:
        agent: As it introduces itself.
        history: Of the node that it names.
        present: The agents that there are.
        accepts_shared: Whether the certificate that agents of 0.1 share is accepted.
        is_expected: Whether there may be a placeholder on the node that it names.
    """
    certificate, others = agent.certificate, list(present)
    if certificate is None:
        if not accepts_shared:
            return "the certificate names no node, as that which all agents of version 0.1 shared"
        if history.has_own:
            return f"the certificate names no node, and the agents of {agent.node} have one of their own"
    elif certificate.name != node_name(agent.node):
        return f"the certificate is that of another node than {agent.node}"
    elif certificate.placeholder is None:
        if any(other.node == agent.node and _number(other) for other in others):
            return f"the agent of a placeholder is on {agent.node}, and the certificate is of none"
    elif certificate.placeholder < history.newest:
        return f"the certificate is that of an earlier placeholder on {agent.node}"
    elif not is_expected:
        return f"the certificate is that of a placeholder, and none is on {agent.node}"
    if any(other.node != agent.node and other.placeholder == agent.placeholder for other in others):
        return f"placeholder {agent.placeholder!r} is that of another node's agent"
    return ""


def _number(agent: RegisteredAgent) -> int:
    return 0 if agent.certificate is None else agent.certificate.placeholder or 0
