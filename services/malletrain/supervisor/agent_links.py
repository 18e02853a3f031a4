"""Connections to the agents of nodes, and the workers on those nodes."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from malletrain.common import environment as env
from malletrain.supervisor.agent_calls import AgentCall, AgentCallError
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.remote_worker import RemoteWorker
from malletrain.v1 import agent_pb2 as pb

_LOOPBACK = "127."
_SWEEP_SECONDS = 2.0
_POLL_SECONDS = 0.02

log = logging.getLogger(__name__)


class AgentLink:
    """The connection to the agent of one node. Each GPU of a member of a fleet has its own, to the agent of its node.

    When the connection is lost, the agent kills the workers that were started over it, and the link reports them as
    killed. A link is not reconnected: new workers get a new link.

    Attributes:
        host: Name of the node, or of the GPU.
        address: HOST:PORT of the agent.
        is_leaving: Whether the agent has reported that its node is wanted back.
    """

    def __init__(self, host: str, address: str, certificate: Path | None, *, is_leaving: bool = False) -> None:
        """Connect in the background. Messages are queued until then.

        Args:
            host: Name of the node.
            address: HOST:PORT of the agent.
            certificate: The supervisors' certificate file; None if there is none.
            is_leaving: Whether the agent has reported over an earlier link that its node is wanted back. It holds
                until this link is connected: an agent that is leaving reports it again.
        """
        self.host = host
        self.address = address
        self.is_leaving = is_leaving
        self._workers: dict[int, RemoteWorker] = {}
        self._numbers = itertools.count(1)
        self._sweeps: dict[int, threading.Event] = {}
        self._lost = threading.Event()
        self._call = AgentCall(address, certificate)
        threading.Thread(target=self._follow, name=f"agent of {host}", daemon=True).start()

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
        here = self.address.startswith(_LOOPBACK)
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

    def _handle(self, response: pb.ControlWorkersResponse) -> None:
        kind = response.WhichOneof("response")
        if kind == "leaving":
            self.is_leaving = True
        elif kind == "swept":
            if (event := self._sweeps.pop(response.swept.request, None)) is not None:
                event.set()
        elif kind is not None:
            number = getattr(response, kind).worker
            if (worker := self._workers.get(number)) is not None:
                worker.handle(response)
                if worker.poll() is not None and not worker.has_group():
                    del self._workers[number]


class AgentLinks:
    """The connections to the agents of a job's nodes. Use from one thread."""

    def __init__(self, certificate: Path | None) -> None:
        """Begin without addresses.

        Args:
            certificate: The supervisors' certificate file; None if all nodes are virtual nodes of this machine.
        """
        self._certificate = certificate
        self._addresses: dict[str, str] = {}
        self._links: dict[str, AgentLink] = {}

    def update(self, addresses: Mapping[str, str]) -> None:
        """Take over addresses of agents, by node. A node without address is this machine."""
        self._addresses.update({host: address for host, address in addresses.items() if address})

    def get(self, host: str) -> AgentLink | None:
        """The link to a node's agent, connected if there is none; None if the node is this machine."""
        address = self._addresses.get(host)
        if address is None:
            return None
        link = self._links.get(host)
        if link is None or link.is_lost or link.address != address:
            leaving = link is not None and link.address == address and link.is_leaving
            link = self._links[host] = AgentLink(host, address, self._certificate, is_leaving=leaving)
        return link

    @property
    def leaving(self) -> frozenset[str]:
        """Nodes whose agents have reported that they are wanted back."""
        return frozenset(host for host, link in self._links.items() if link.is_leaving)

    def peer_addresses(self) -> frozenset[str]:
        """IP addresses of the nodes on which the job has workers now, except this machine. Safe in any thread."""
        links = list(self._links.values())
        return frozenset(link.address.rpartition(":")[0].strip("[]") for link in links if link.has_workers)

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
        log=str(log_file),
        warm=warm,
    )
