"""Connections to the agents of nodes, and the workers on those nodes."""

from __future__ import annotations

import itertools
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from malletrain.common import environment as env
from malletrain.common.agent_protocol import AgentConnection, AgentProtocolError, Message
from malletrain.supervisor.membership import Slot

_LOOPBACK = "127."
_SWEEP_SECONDS = 2.0
_POLL_SECONDS = 0.02
_CONNECT_SECONDS = 5.0

log = logging.getLogger(__name__)


class AgentLink:
    """The connection to the agent of one node.

    When the connection is lost, the agent kills the workers that were started over it, and the link reports them as
    killed. A link is not reconnected: new workers get a new link.

    Attributes:
        host: Name of the node.
        address: HOST:PORT of the agent.
        is_leaving: Whether the agent has reported that its node is wanted back.
    """

    def __init__(self, host: str, address: str, token: bytes, *, is_leaving: bool = False) -> None:
        """Connect in the background. Messages are queued until then.

        Args:
            host: Name of the node.
            address: HOST:PORT of the agent.
            token: The installation's secret.
            is_leaving: Whether the agent has reported over an earlier link that its node is wanted back. It holds
                until this link is connected: an agent that is leaving reports it again.
        """
        self.host = host
        self.address = address
        self.is_leaving = is_leaving
        self._token = token
        self._workers: dict[int, RemoteWorker] = {}
        self._numbers = itertools.count(1)
        self._sweeps: dict[int, threading.Event] = {}
        self._lost = threading.Event()
        self._outgoing: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._run, name=f"agent of {host}", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost, or could not be made."""
        return self._lost.is_set()

    @property
    def has_workers(self) -> bool:
        """Whether there are workers on the node that were started over this link."""
        return bool(self._workers) and not self.is_lost

    def start(self, slot: Slot, message: Mapping[str, Any]) -> RemoteWorker:
        """Start a worker; see `start_message`."""
        here = self.address.startswith(_LOOPBACK)
        worker = RemoteWorker(slot, next(self._numbers), here, self.send, self._lost)
        self._workers[worker.number] = worker
        self.send({"op": "start", "id": worker.number, "local_rank": slot.local_rank, **message})
        return worker

    def send(self, message: Message) -> None:
        """Queue a message. It is dropped if the connection is lost."""
        self._outgoing.put(message)

    def sweep(self, job_id: str) -> bool:
        """Kill all processes of a job on the node.

        Returns:
            Whether the agent has confirmed within 2 s that none is left.
        """
        number, event = next(self._numbers), threading.Event()
        self._sweeps[number] = event
        self.send({"op": "sweep", "request": number, "job_id": job_id})
        for _ in range(int(_SWEEP_SECONDS / _POLL_SECONDS)):
            if self.is_lost or event.wait(_POLL_SECONDS):
                break
        return event.is_set()

    def close(self) -> None:
        """Disconnect. The agent then kills what is left of the link's workers."""
        self._outgoing.put(None)

    def _run(self) -> None:
        try:
            connection = AgentConnection(self.address, self._token, "supervisor", _CONNECT_SECONDS)
        except (OSError, AgentProtocolError, ValueError) as error:
            log.warning("agent of %s: %s", self.host, error)
            self._lost.set()
            return
        self.is_leaving = False
        threading.Thread(target=self._send_queued, args=(connection,), name=f"to {self.host}", daemon=True).start()
        try:
            while True:
                self._handle(connection.read())
        except (OSError, AgentProtocolError) as error:
            log.info("agent of %s is lost: %s", self.host, error)
        finally:
            self._lost.set()
            self._outgoing.put(None)

    def _send_queued(self, connection: AgentConnection) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                connection.send(message)
        except OSError as error:
            log.info("agent of %s can't be reached: %s", self.host, error)
        finally:
            connection.close()

    def _handle(self, message: Message) -> None:
        match message.get("event"):
            case "leaving":
                self.is_leaving = True
            case "swept":
                if (event := self._sweeps.pop(int(message["request"]), None)) is not None:
                    event.set()
            case str() as name if (worker := self._workers.get(int(message["id"]))) is not None:
                worker.handle(name, message)
                if worker.poll() is not None and not worker.has_group():
                    del self._workers[worker.number]


class RemoteWorker:
    """A worker on another node; see `malletrain.supervisor.worker.Worker`.

    Attributes:
        number: Identifies it to the agent.
    """

    def __init__(
        self, slot: Slot, number: int, here: bool, send: Callable[[Message], None], lost: threading.Event
    ) -> None:
        self.slot = slot
        self.here = here
        self.number = number
        self.pid = 0
        self.going = False
        self.killed = False
        self.hung = False
        self._status = ""
        self._send = send
        self._lost = lost
        self._stopped = False
        self._group_ended = False
        self._code: int | None = None

    @property
    def started(self) -> bool:
        """Whether the job's own code runs."""
        return "s" in self._status

    def handle(self, event: str, message: Message) -> None:
        """Take in what the agent reports of this worker."""
        match event:
            case "started":
                self.pid = int(message["pid"])
            case "said":
                self._status = str(message["said"])
            case "stopped":
                self._stopped = bool(message["stopped"])
            case "ended":
                self._code = int(message["code"])
                self._group_ended = self._code != 0  # the agent kills the group of a worker that failed
            case "cleared":
                self._group_ended = True
            case "failed":
                log.warning("worker on %s can't be started: %s", self.slot.host, message.get("error"))
                self._code = 127

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. It is killed if the connection is lost."""
        return -signal.SIGKILL if self._code is None and self._lost.is_set() else self._code

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""
        return self._stopped

    def is_warm(self) -> bool:
        """Whether it has booted."""
        return "w" in self._status

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""
        self.going = True
        self._send({"op": "go", "id": self.number, "environment": dict(environment)})

    def terminate(self) -> None:
        """Send SIGTERM: the worker may save its state, and then ends."""
        self._send({"op": "terminate", "id": self.number})

    def kill(self) -> None:
        """Kill its process group."""
        self.killed = True
        self._send({"op": "kill", "id": self.number})

    def has_group(self) -> bool:
        """Whether any process of its process group still runs, as far as is known."""
        return not (self._group_ended or self._lost.is_set())

    def close(self) -> None:
        """Nothing to release."""


class AgentLinks:
    """The connections to the agents of a job's nodes. Use from one thread."""

    def __init__(self, token: bytes) -> None:
        """Begin without addresses.

        Args:
            token: The installation's secret; empty if all nodes are virtual nodes of this machine.
        """
        self._token = token
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
            link = self._links[host] = AgentLink(host, address, self._token, is_leaving=leaving)
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
                link.send({"op": "cut"})

    def close(self) -> None:
        """Disconnect from all agents."""
        for link in self._links.values():
            link.close()


def start_message(
    slot: Slot, command: Iterable[str], folder: str, environment: Mapping[str, str], log_file: Path, *, warm: bool
) -> dict[str, Any]:
    """What an agent needs to know to start a worker; see `malletrain.common.worker_process.WorkerProcess`."""
    return {
        "command": list(command),
        "folder": folder,
        "environment": {**environment, env.NODE: slot.host},
        "log": str(log_file),
        "warm": warm,
    }
