"""Connections to the agents of nodes, and the workers on those nodes."""

from __future__ import annotations

import itertools
import logging
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import grpc

from malletrain.common import environment as env
from malletrain.common.activity import Idleness, Wait
from malletrain.common.launch_file import AgentAddress
from malletrain.common.tasks import start_thread
from malletrain.supervisor.workers.slot import Slot
from malletrain.tls.channels import NODE_CHANNEL
from malletrain.tls.credentials import channel_credentials, name_options, peer_options
from malletrain.tls.files import CertificateFileError
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1 import agent_pb2_grpc

_NOT_STARTED = 127
"""Exit status of a worker that could not be started, as of a shell."""

log = logging.getLogger(__name__)


class RemoteWorker:
    """A worker on another node; see `malletrain.supervisor.workers.worker.Worker`.

    Attributes:
        number: Identifies it to the agent.
        started: Whether the job's own code runs.
        out_of_memory: Whether the kernel killed processes on its node for want of memory when it was killed.
    """

    def __init__(
        self,
        slot: Slot,
        number: int,
        here: bool,
        send: Callable[[pb.ControlWorkersRequest], None],
        lost: threading.Event,
    ) -> None:
        """
        Args:
            number: Identifies it to the agent.
            here: Whether the agent is on this machine.
            lost: Set once the agent is lost.
        """
        self.slot = slot
        self.here = here
        self.number = number
        self.pid = 0
        self.started = False
        self.going = False
        self.killed = False
        self.hung = False
        self.place: Mapping[str, str] | None = None
        self.out_of_memory = False
        self._not_started = False
        self._warm = False
        self._can_prepare = False
        self._prepared = False
        self._send = send
        self._lost = lost
        self._stopped = False
        self._session_ended = False
        self._code: int | None = None

    def handle(self, response: pb.ControlWorkersResponse) -> None:
        """Take in what the agent reports of this worker."""
        match response.WhichOneof("response"):
            case "started":
                self.pid = response.started.pid
                self._can_prepare = response.started.can_prepare
            case "status_changed":
                self._warm = response.status_changed.warm
                self.started = response.status_changed.code_started
                self._prepared = response.status_changed.prepared
            case "stopped_changed":
                self._stopped = response.stopped_changed.stopped
            case "ended":
                self._code = response.ended.exit_status
                self.out_of_memory = response.ended.out_of_memory
            case "group_ended":
                self._session_ended = True
            case "start_failed":
                log.warning("worker on %s can't be started: %s", self.slot.host, response.start_failed.error)
                self._code = _NOT_STARTED
                self._not_started = True
                self._session_ended = True

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. It is killed if the connection is lost."""
        return -signal.SIGKILL if self._code is None and self._lost.is_set() else self._code

    @property
    def lost(self) -> bool:
        """Whether it has ended with the agent of its node, or could not be started there."""
        return self._not_started or (self._code is None and self._lost.is_set())

    @property
    def of_release_0_1(self) -> bool:
        """Whether its agent is of release 0.1: those of later ones can prepare workers."""
        return self.pid != 0 and not self._can_prepare

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""
        return self._stopped

    def is_warm(self) -> bool:
        """Whether it has booted."""
        return self._warm

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Have it get ready for a place."""
        self.place = dict(environment)
        if self._can_prepare:
            prepare = pb.PrepareCode(worker=self.number, environment=environment)
            self._send(pb.ControlWorkersRequest(prepare_code=prepare))

    def is_prepared(self) -> bool:
        """Whether it has got ready for its place. Where the agent does not know how, it does that after its start."""
        return self.place is not None and (self._prepared or not self._can_prepare)

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""
        self.going = True
        start = pb.StartCode(worker=self.number, environment=environment)
        self._send(pb.ControlWorkersRequest(start_code=start))

    def terminate(self, grace: float) -> None:
        """Send SIGTERM: the worker may save its state, and then ends."""
        request = pb.TerminateWorker(worker=self.number, grace_seconds=grace)
        self._send(pb.ControlWorkersRequest(terminate=request))

    def kill(self) -> None:
        """Kill its process group."""
        self.killed = True
        self._send(pb.ControlWorkersRequest(kill=pb.KillWorker(worker=self.number)))

    def has_session(self) -> bool:
        """Whether any process of its session still runs, as far as is known."""
        return not (self._session_ended or self._lost.is_set())

    def kill_session(self) -> None:
        """The agent does, in time; nobody waits for that any more."""
        self._session_ended = True

    def close(self) -> None:
        """Does nothing: the agent has the process, and this object no file."""


_ROLE = "agent"


class AgentCallError(Exception):
    """The agent can't be reached, refuses us, or is lost. The message says which."""


class AgentCall:
    """A session with an agent. One thread reads; any thread may send or close."""

    def __init__(self, agent: AgentAddress, certificate: Path | None) -> None:
        """Nothing happens before `responses` is followed.

        Args:
            certificate: The supervisors' certificate file; None if there is none.
        """
        self._agent = agent
        self._certificate = certificate
        self._outgoing: queue.SimpleQueue[pb.ControlWorkersRequest | None] = queue.SimpleQueue()
        self._channel: grpc.Channel | None = None

    def responses(self) -> Iterator[pb.ControlWorkersResponse | None]:
        """Connect, and follow what the agent reports until it ends the session: first None, once it has begun it.

        Raises:
            AgentCallError: it can't be reached, refuses us, or is lost.
        """
        known_by = name_options(self._agent.name) if self._agent.name else peer_options(_ROLE)
        self._channel = grpc.secure_channel(self._agent.address, self._credentials(), (*NODE_CHANNEL, *known_by))
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


_LOOPBACK = "127."
_SWEEP_SECONDS = 2.0
_POLL_SECONDS = 0.02


class AgentLink:
    """The connection to the agent of one node. Each GPU of a member of a fleet has its own, to the agent of its node.

    When the connection is lost, the agent kills the workers that were started over it, and the link reports them as
    killed. A link is not reconnected: new workers get a new link.

    Attributes:
        host: Name of the node, or of the GPU.
        agent: Where the agent is.
        is_leaving: Whether the agent has reported that its node is wanted back.
        idleness: What the agent has reported of the workers' processes; None: that they are at work, or nothing.
    """

    def __init__(self, host: str, agent: AgentAddress, certificate: Path | None, *, is_leaving: bool = False) -> None:
        """Connect in the background. Messages are queued until then.

        Args:
            certificate: The supervisors' certificate file; None if there is none.
            is_leaving: Whether the agent has reported over an earlier link that its node is wanted back. It holds
                until this link is connected: an agent that is leaving reports it again.
        """
        self.host = host
        self.agent = agent
        self.is_leaving = is_leaving
        self.idleness: Idleness | None = None
        self._workers: dict[int, RemoteWorker] = {}
        self._numbers = itertools.count(1)
        self._sweeps: dict[int, threading.Event] = {}
        self._lost = threading.Event()
        self._call = AgentCall(agent, certificate)
        start_thread(self._follow, f"agent of {host}", self._note_failure)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost, or could not be made."""
        return self._lost.is_set()

    @property
    def has_workers(self) -> bool:
        """Whether there are workers on the node that were started over this link."""
        return bool(self._workers) and not self.is_lost

    def start(self, slot: Slot, message: pb.StartWorker) -> RemoteWorker:
        """Start a worker; see `start_message`."""
        here = self.agent.address.startswith(_LOOPBACK)
        worker = RemoteWorker(slot, next(self._numbers), here, self.send, self._lost)
        self._workers[worker.number] = worker
        start = pb.StartWorker(worker=worker.number)
        start.MergeFrom(message)
        self.send(pb.ControlWorkersRequest(start=start))
        return worker

    def send(self, request: pb.ControlWorkersRequest) -> None:
        """Queue a message. It is dropped if the connection is lost."""
        self._call.send(request)

    def sweep(self, job_id: str) -> bool:
        """Kill all processes of a job on the node, or on the GPU.

        Returns:
            Whether the agent has confirmed within 2 s that none is left.
        """
        number, event = next(self._numbers), threading.Event()
        self._sweeps[number] = event
        self.send(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=number, job_id=job_id, node=self.host)))
        for _ in range(int(_SWEEP_SECONDS / _POLL_SECONDS)):
            if self.is_lost or event.wait(_POLL_SECONDS):
                break
        return event.is_set()

    def close(self) -> None:
        """Disconnect. The agent then kills what is left of the link's workers."""
        self._call.end()

    def _follow(self) -> None:
        """Take in what the agent reports, until it is lost."""
        try:
            for response in self._call.responses():
                if response is None:
                    self.is_leaving = False
                else:
                    self._handle(response)
            log.info("agent of %s has ended the session", self.host)
        except AgentCallError as error:
            log.warning("agent of %s: %s", self.host, error)
        finally:
            self._lost.set()
            self._call.close()

    def _note_failure(self, error: BaseException) -> None:
        """The link counts as lost already: the node's workers are started over another one."""
        log.error("the link to the agent of %s has failed: %r", self.host, error)

    def _handle(self, response: pb.ControlWorkersResponse) -> None:
        kind = response.WhichOneof("response")
        if kind == "leaving":
            self.is_leaving = True
        elif kind == "idle_changed":
            change, now = response.idle_changed, time.monotonic()
            idle = math.isfinite(change.idle_seconds) and change.idle_seconds > 0
            wait = Wait(change.wait) if int(change.wait) in set(map(int, Wait)) else Wait.OTHER
            self.idleness = Idleness(now - change.idle_seconds, wait) if idle else None
        elif kind == "swept":
            if (event := self._sweeps.pop(response.swept.request, None)) is not None:
                event.set()
        elif kind is not None:
            number = getattr(response, kind).worker
            if (worker := self._workers.get(number)) is not None:
                worker.handle(response)
                if worker.poll() is not None and not worker.has_session():
                    del self._workers[number]


class AgentLinks:
    """The connections to the agents of a job's nodes. Use from one thread."""

    def __init__(self, certificate: Path | None) -> None:
        """
        Args:
            certificate: The supervisors' certificate file; None if all nodes are virtual nodes of this machine.
        """
        self._certificate = certificate
        self._agents: dict[str, AgentAddress] = {}
        self._links: dict[str, AgentLink] = {}

    def update(self, agents: Mapping[str, AgentAddress]) -> None:
        """Take over where agents are, by node. A node without address is this machine.

        A JobManager of version 0.1 names no names: the one that is known stays, and so does the link.
        """
        for host, agent in agents.items():
            known = self._agents.get(host)
            if known is not None and not agent.name and agent.address == known.address:
                continue
            if agent.address:
                self._agents[host] = agent

    def get(self, host: str) -> AgentLink | None:
        """The link to a node's agent, connected if there is none; None if the node is this machine."""
        agent = self._agents.get(host)
        if agent is None:
            return None
        link = self._links.get(host)
        if link is None or link.is_lost or link.agent != agent:
            leaving = link is not None and link.agent == agent and link.is_leaving
            link = self._links[host] = AgentLink(host, agent, self._certificate, is_leaving=leaving)
        return link

    @property
    def leaving(self) -> frozenset[str]:
        """Nodes whose agents have reported that they are wanted back."""
        return frozenset(host for host, link in self._links.items() if link.is_leaving)

    def idleness(self, hosts: Iterable[str]) -> list[Idleness | None]:
        """Whether the job's workers on these nodes do nothing, as far as their agents have reported."""
        return [None if (link := self._links.get(host)) is None else link.idleness for host in hosts]

    def peer_addresses(self) -> frozenset[str]:
        """IP addresses of the nodes on which the job has workers now, except this machine. Safe in any thread."""
        links = list(self._links.values())
        return frozenset(link.agent.address.rpartition(":")[0].strip("[]") for link in links if link.has_workers)

    def sweep(self, job_id: str, hosts: Iterable[str] | None) -> None:
        """Kill all processes of a job on these nodes, or on all."""
        wanted = set(self._links if hosts is None else hosts)
        for host, link in self._links.items():
            if host in wanted and not link.is_lost and not link.sweep(job_id):
                log.warning("agent of %s has not confirmed that the node is clean", host)

    def cut(self, hosts: Iterable[str]) -> None:
        """Shut down the connections of workers on these nodes to other nodes, except to the head node."""
        for host in hosts:
            if (link := self._links.get(host)) is not None:
                link.send(pb.ControlWorkersRequest(cut_connections=pb.CutConnections()))

    def close(self) -> None:
        """Disconnect from all agents. Those that are needed again are connected anew."""
        for link in self._links.values():
            link.close()
        self._links = {}


def start_message(
    slot: Slot, command: Iterable[str], folder: str, environment: Mapping[str, str], log_file: Path, *, warm: bool
) -> pb.StartWorker:
    """What an agent needs to know to start a worker; see `malletrain.common.worker_process.WorkerProcess`."""
    return pb.StartWorker(
        command=command,
        folder=folder,
        environment={**environment, env.NODE: slot.host},
        local_rank=slot.local_rank,
        log=str(log_file),
        warm=warm,
    )
