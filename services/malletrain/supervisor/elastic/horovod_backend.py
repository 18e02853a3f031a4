"""What Horovod's elastic driver does for workers: rendezvous, environment, and notices that hosts have changed.

Horovod's own driver (0.28.1) has blacklists, time stamps of whole seconds, and barriers that lose changes which come
close together; here the rendezvous asks `Membership` instead. The protocol of the workers is unchanged: they fetch
their rank over HTTP when they initialise again, register a service that takes notices, and meet in Gloo's key-value
scopes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, HostInfo, SlotInfo, get_host_assignments
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from malletrain.common import environment as env
from malletrain.common.tasks import start_thread
from malletrain.supervisor.elastic.backend import SlotEvent
from malletrain.supervisor.elastic.membership import Formation
from malletrain.supervisor.rendezvous.connection_filters import RendezvousConfig
from malletrain.supervisor.rendezvous.server import GuardedRendezvousServer, WorkerAddresses, host_name, world_name
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot

AssignmentT = TypeVar("AssignmentT")


class RankAssignment(Generic[AssignmentT]):
    """Every worker that asks for its place gets an answer in the end. May be used from any thread."""

    def __init__(self, none: AssignmentT) -> None:
        """Begin with no worker waiting."""
        self._none = none
        self._lock = threading.Lock()
        self._waiting: dict[Slot, Future[AssignmentT]] = {}
        self._places: Mapping[Slot, AssignmentT] | None = None
        self._awaited: set[int] = set()
        self._closed = False

    def ask_place(self, slot: Slot) -> Future[AssignmentT]:
        """Ask for the place of a slot. A worker that has asked for the same slot before gets none: it has ended."""
        place: Future[AssignmentT] = Future()
        with self._lock:
            if self._closed:
                place.set_result(self._none)
                return place
            earlier = self._waiting.pop(slot, None)
            self._waiting[slot] = place
        if earlier is not None:
            earlier.set_result(self._none)
        return place

    def give_places(self, places: Mapping[Slot, AssignmentT], awaited: Iterable[int]) -> None:
        """Answer all that wait, once the workers of these ranks have begun to connect."""
        with self._lock:
            self._places, self._awaited = places, set(awaited)
        self._answer()

    def show_up(self, rank: int) -> None:
        """The worker of a rank has begun to connect."""
        with self._lock:
            self._awaited.discard(rank)
        self._answer()

    def recall(self) -> frozenset[Slot]:
        """Take back places that were given but not yet answered.

        Returns:
            The slots that go on waiting.
        """
        with self._lock:
            held = frozenset(self._waiting) if self._places is not None else frozenset()
            self._places = None
        return held

    def refuse(self, slot: Slot) -> None:
        """Give no place to the worker that waits for a slot."""
        with self._lock:
            place = self._waiting.pop(slot, None)
        if place is not None:
            place.set_result(self._none)

    def close(self) -> None:
        """Give no place to all that wait, and to all that ask from now on."""
        with self._lock:
            self._closed = True
        self.give_places({}, ())

    def _answer(self) -> None:
        with self._lock:
            if self._places is None or self._awaited:
                return
            places, self._places = self._places, None
            waiting, self._waiting = self._waiting, {}
        for slot, place in waiting.items():
            place.set_result(places.get(slot, self._none))


_GLOO_SECONDS = {True: "10", False: "60"}
"""Gloo's time-out, by whether workers are warm when they join: if not, the others wait while one boots."""

log = logging.getLogger(__name__)


class HorovodBackend:
    """Rendezvous server and notices of one job. See `malletrain.supervisor.elastic.backend.Backend`."""

    def __init__(self, rendezvous: RendezvousConfig, on_ready: SlotEvent, on_registered: SlotEvent) -> None:
        """Start the rendezvous server.

        Args:
            on_ready: Called when a worker waits for its rank.
            on_registered: Called when a worker takes part.
        """
        self._address, self._interfaces = rendezvous.address, rendezvous.interfaces
        self._on_ready = on_ready
        self._on_registered = on_registered
        self._clients: dict[Slot, WorkerNotificationClient] = {}
        self._places = RankAssignment(INVALID_SLOT_INFO)
        self._server = GuardedRendezvousServer(self._address, self, rendezvous.admits)
        self._server.init([])
        start_thread(self._server.serve_forever, "rendezvous")
        self._notices: queue.Queue[tuple[Slot, float] | None] = queue.Queue()
        start_thread(self._send_notices, "notices")

    def defaults(self, warm: bool) -> Mapping[str, str]:
        """Variables that a worker gets unless its job sets them."""
        return {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": _GLOO_SECONDS[warm],
            **env.TRAINER_DEFAULTS,
        }

    def places(self, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment that the workers of a group of these hosts get."""
        return {slot: self._environment(place) for slot, place in _assign(hosts).items()}

    def form(self, formation: Formation) -> Mapping[Slot, Mapping[str, str]]:
        """Open the rendezvous of a new group."""
        places = _assign(formation.hosts)
        self._server.init(list(places.values()))
        for slot in formation.removed:
            self._clients.pop(slot, None)
        self._places.give_places(places, {places[slot].rank for slot in formation.added})
        return {slot: self._environment(places[slot]) for slot in formation.added}

    def recall(self) -> frozenset[Slot]:
        """Give up the newest group if its other members still wait for new workers."""
        return self._places.recall()

    def _environment(self, place: SlotInfo) -> dict[str, str]:
        port = self._server.server_address[1]
        run = create_run_env_vars(self._address, list(self._interfaces), port, elastic=True)
        variables = run | create_slot_env_vars(place)
        return {name: str(value) for name, value in variables.items()}

    def notify(self, coordinator: Slot, stamp: float) -> None:
        """Tell rank 0 that hosts have changed; workers come back at their next check.

        Always "mixed": after a notice of removals alone, survivors would not synchronise the state, and a new worker
        that has joined in the meantime would wait for that for ever.
        """
        self._notices.put((coordinator, stamp))

    def refuse(self, slot: Slot) -> None:
        """Tell a worker that waits at the rendezvous for this slot that it gets no rank."""
        self._places.refuse(slot)

    def close(self) -> None:
        """Stop serving."""
        self._places.close()
        self._notices.put(None)
        self._server.shutdown()
        self._server.server_close()

    def place_of(self, slot: Slot) -> SlotInfo:
        """Wait for the rank of a worker that has come back."""
        place = self._places.ask_place(slot)
        self._on_ready(slot)
        return place.result()

    def show_up(self, rank: int) -> None:
        """A member of the newest group has begun to connect."""
        self._places.show_up(rank)

    def register(self, slot: Slot, addresses: WorkerAddresses, key: bytes) -> None:
        """A worker takes part, and takes notices at these addresses."""
        self._clients[slot] = WorkerNotificationClient(addresses, key, 0)
        self._on_registered(slot)

    def _send_notices(self) -> None:
        while (notice := self._notices.get()) is not None:
            slot, stamp = notice
            client = self._clients.get(slot)
            if client is None:
                continue
            try:
                client.notify_hosts_updated(stamp, HostUpdateResult.mixed)
            except Exception as error:  # noqa: BLE001  # Horovod's client raises plain Exception; the notice is repeated
                log.info("notice to %s failed: %s", slot, error)


def _assign(hosts: Hosts) -> dict[Slot, SlotInfo]:
    """Horovod's ranks, in rank order."""
    infos = get_host_assignments([HostInfo(world_name(host), slots) for host, slots in hosts], 1) if hosts else []
    return {Slot(host_name(info.hostname), info.local_rank): info for info in infos}
