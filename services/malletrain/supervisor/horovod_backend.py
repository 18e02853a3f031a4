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
from collections.abc import Mapping

from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, HostInfo, SlotInfo, get_host_assignments
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from malletrain.common import environment as env
from malletrain.supervisor.backend import SlotEvent
from malletrain.supervisor.membership import Formation, Slot
from malletrain.supervisor.rank_assignment import RankAssignment
from malletrain.supervisor.rendezvous_config import RendezvousConfig
from malletrain.supervisor.rendezvous_server import GuardedRendezvousServer, WorkerAddresses, host_name, world_name

_GLOO_SECONDS = {True: "10", False: "60"}
"""Gloo's time-out, by whether workers are warm when they join: if not, the others wait while one boots."""

log = logging.getLogger(__name__)


class HorovodBackend:
    """Rendezvous server and notices of one job. See `malletrain.supervisor.backend.Backend`."""

    def __init__(self, rendezvous: RendezvousConfig, on_ready: SlotEvent, on_registered: SlotEvent) -> None:
        """Start the rendezvous server.

        Args:
            rendezvous: Where it is served, and to whom.
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
        threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True).start()
        self._notices: queue.Queue[tuple[Slot, float] | None] = queue.Queue()
        threading.Thread(target=self._send_notices, name="notices", daemon=True).start()

    def defaults(self, warm: bool) -> Mapping[str, str]:
        """Variables that a worker gets unless its job sets them."""
        return {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": _GLOO_SECONDS[warm],
            **env.TRAINER_DEFAULTS,
        }

    def form(self, formation: Formation) -> Mapping[Slot, Mapping[str, str]]:
        """Open the rendezvous of a new group."""
        infos = get_host_assignments([HostInfo(world_name(host), slots) for host, slots in formation.hosts], 1)
        places = {Slot(host_name(info.hostname), info.local_rank): info for info in infos}
        self._server.init(infos)
        for slot in formation.removed:
            self._clients.pop(slot, None)
        self._places.give(places, {places[slot].rank for slot in formation.added})
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
        place = self._places.ask(slot)
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
