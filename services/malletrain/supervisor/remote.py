"""Workers on other nodes, by way of the node's agent. They look like those of this machine."""

from __future__ import annotations

import itertools
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from malletrain.agent.wire import Connection, Message, WireError
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.processes import NODE

_LOOPBACK = "127."
_SWEEP_SECONDS = 2.0
_CONNECT_SECONDS = 5.0

log = logging.getLogger(__name__)


class AgentLink:
    """The connection to one node's agent.

    When it is lost, the agent kills what it has started for this link, and the link counts its workers as killed: it
    never comes back, a new one is opened for new workers.

    Attributes:
        host: Name of the node.
        address: HOST:PORT of the agent.
    """

    def __init__(self, host: str, address: str, token: bytes) -> None:
        """Connect in the background; what is sent before waits."""
        self.host = host
        self.address = address
        self._token = token
        self._workers: dict[int, RemoteWorker] = {}
        self._numbers = itertools.count(1)
        self._swept: dict[int, threading.Event] = {}
        self._lost = threading.Event()
        self._outgoing: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._work, name=f"agent of {host}", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether the agent can't be reached any more."""
        return self._lost.is_set()

    def start(self, slot: Slot, message: Mapping[str, Any]) -> RemoteWorker:
        """Have a worker started."""
        here = self.address.startswith(_LOOPBACK)
        worker = RemoteWorker(slot, next(self._numbers), here, self.send, self._lost)
        self._workers[worker.number] = worker
        self.send({"op": "start", "id": worker.number, "local_rank": slot.local_rank, **message})
        return worker

    def send(self, message: Message) -> None:
        """Say something to the agent; nothing happens once it is lost."""
        self._outgoing.put(message)

    def sweep(self, job_id: str) -> bool:
        """Have everything killed there that bears the job's mark; whether the agent has confirmed it."""
        number, event = next(self._numbers), threading.Event()
        self._swept[number] = event
        self.send({"op": "sweep", "request": number, "job_id": job_id})
        for _ in range(int(_SWEEP_SECONDS / 0.02)):
            if self.is_lost or event.wait(0.02):
                break
        return event.is_set()

    def close(self) -> None:
        """Let go of the agent, which ends what is left."""
        self._outgoing.put(None)

    def _work(self) -> None:
        try:
            connection = Connection(self.address, self._token, "supervisor", _CONNECT_SECONDS)
        except (OSError, WireError, ValueError) as error:
            log.warning("agent of %s: %s", self.host, error)
            self._lost.set()
            return
        threading.Thread(target=self._send, args=(connection,), name=f"to {self.host}", daemon=True).start()
        try:
            while True:
                self._hear(connection.read())
        except (OSError, WireError) as error:
            log.info("agent of %s is lost: %s", self.host, error)
        finally:
            self._lost.set()
            self._outgoing.put(None)

    def _send(self, connection: Connection) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                connection.send(message)
        except OSError as error:
            log.info("agent of %s can't be told: %s", self.host, error)
        finally:
            connection.close()

    def _hear(self, message: Message) -> None:
        match message.get("event"):
            case "swept":
                if (event := self._swept.pop(int(message["request"]), None)) is not None:
                    event.set()
            case str() as event_name if (worker := self._workers.get(int(message["id"]))) is not None:
                worker.hear(event_name, message)
                if worker.poll() is not None:
                    del self._workers[worker.number]


class RemoteWorker:
    """One worker on another node; see `malletrain.supervisor.processes.WorkerProcess`."""

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
        self.said = b""
        self._send = send
        self._lost = lost
        self._stopped = False
        self._code: int | None = None

    @property
    def started(self) -> bool:
        """Whether the job's own code runs."""
        return b"s" in self.said

    def hear(self, event: str, message: Message) -> None:
        """Take over what the agent tells."""
        match event:
            case "started":
                self.pid = int(message["pid"])
            case "said":
                self.said = str(message["said"]).encode()
            case "stopped":
                self._stopped = bool(message["stopped"])
            case "ended":
                self._code = int(message["code"])
            case "failed":
                log.warning("worker on %s can't be started: %s", self.slot.host, message.get("error"))
                self._code = 127

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. With its agent it ends, too."""
        return -signal.SIGKILL if self._code is None and self._lost.is_set() else self._code

    def is_stopped(self) -> bool:
        """Whether it has been stopped by a signal."""
        return self._stopped

    def is_warm(self) -> bool:
        """Whether the process waits for its start."""
        return b"w" in self.said

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the trainer start with these variables on top of its environment."""
        self.going = True
        self._send({"op": "go", "id": self.number, "environment": dict(environment)})

    def terminate(self) -> None:
        """Ask the trainer to commit, save and end."""
        self._send({"op": "terminate", "id": self.number})

    def kill(self) -> None:
        """Kill the process and its group."""
        self.killed = True
        self._send({"op": "kill", "id": self.number})

    def close(self) -> None:
        """Nothing is held here."""


class Agents:
    """The agents of the nodes that a job uses. Use from one thread."""

    def __init__(self, token: bytes) -> None:
        """Know none.

        Args:
            token: The installation's secret; empty where all nodes are virtual.
        """
        self._token = token
        self._addresses: dict[str, str] = {}
        self._links: dict[str, AgentLink] = {}

    def know(self, addresses: Mapping[str, str]) -> None:
        """Take over where nodes' agents are; a node without is this machine."""
        self._addresses.update({host: address for host, address in addresses.items() if address})

    def of(self, host: str) -> AgentLink | None:
        """The link to a node's agent; None where the node is this machine."""
        address = self._addresses.get(host)
        if address is None:
            return None
        link = self._links.get(host)
        if link is None or link.is_lost or link.address != address:
            link = self._links[host] = AgentLink(host, address, self._token)
        return link

    def sweep(self, job_id: str, hosts: Iterable[str] | None) -> None:
        """Have everything killed that bears the job's mark on these nodes, or on all."""
        wanted = set(self._links if hosts is None else hosts)
        for host, link in self._links.items():
            if host in wanted and not link.is_lost and not link.sweep(job_id):
                log.warning("agent of %s has not confirmed that the node is clean", host)

    def cut(self, hosts: Iterable[str]) -> None:
        """Shut down the connections that workers on these nodes have to other nodes, this machine apart."""
        for host in hosts:
            if (link := self._links.get(host)) is not None:
                link.send({"op": "cut"})

    def close(self) -> None:
        """Let go of all."""
        for link in self._links.values():
            link.close()


def start_message(
    slot: Slot, command: Iterable[str], folder: str, environment: Mapping[str, str], log_file: Path, *, warm: bool
) -> dict[str, Any]:
    """What an agent needs to know to start a worker."""
    return {
        "command": list(command),
        "folder": folder,
        "environment": {**environment, NODE: slot.host},
        "log": str(log_file),
        "warm": warm,
    }
