"""Speaking Horovod: its rendezvous, its workers' environment, its host-update notices.

Horovod's own elastic driver (0.28.1) keeps blacklists, whole-second time stamps and barriers that lose changes which
come close together; here the rendezvous asks `Membership` instead. What workers speak is unchanged: they fetch their
rank over HTTP when they re-initialise, register a notice service, and meet in Gloo's key-value scopes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from horovod.runner.common.util import codec
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, HostInfo, get_host_assignments
from horovod.runner.common.util.hosts import SlotInfo as SlotInfo
from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE, PUT_WORKER_ADDRESSES
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

from malletrain.supervisor.membership import Formation, Slot

_ADDRESS = "127.0.0.1"
_INTERFACE = "lo"

log = logging.getLogger(__name__)


class HorovodWorld:
    """Rendezvous server and notices of one job."""

    def __init__(
        self, on_ready: Callable[[Slot, Future[SlotInfo]], None], on_registered: Callable[[Slot], None]
    ) -> None:
        """Start the rendezvous server.

        Args:
            on_ready: Called when a member comes back; the future gets its place in the next world.
            on_registered: Called when a worker takes part in its world.
        """
        self._clients: dict[Slot, WorkerNotificationClient] = {}
        self._server = RendezvousServer(0)
        self._port = self._server.start(_handler(on_ready, self._register(on_registered)))
        self._server.init([])
        self._notices: queue.Queue[tuple[Slot, float] | None] = queue.Queue()
        threading.Thread(target=self._send_notices, name="notices", daemon=True).start()

    def _register(self, on_registered: Callable[[Slot], None]) -> Callable[[Slot, Any, Any], None]:
        def register(slot: Slot, addresses: Any, key: Any) -> None:
            self._clients[slot] = WorkerNotificationClient(addresses, key, 0)
            on_registered(slot)

        return register

    def assign(self, formation: Formation) -> dict[Slot, SlotInfo]:
        """Open the rendezvous of a new world and return every member's place in it."""
        hosts = [HostInfo(host, slots) for host, slots in formation.hosts]
        places = get_host_assignments(hosts, 1)
        self._server.init(places)
        for slot in formation.removed:
            self._clients.pop(slot, None)
        return {Slot(place.hostname, place.local_rank): place for place in places}

    def environment(self, place: SlotInfo) -> dict[str, str]:
        """What a newcomer needs to find its world."""
        variables = create_run_env_vars(_ADDRESS, [_INTERFACE], self._port, elastic=True) | create_slot_env_vars(place)
        return {name: str(value) for name, value in variables.items()}

    def notify(self, coordinator: Slot, now: float) -> None:
        """Tell rank 0, without waiting, that hosts have changed; workers come back at their next check.

        Always "mixed": after a notice of removals alone, survivors would skip the state's synchronisation, and a
        newcomer that joined in the meantime would wait for it for ever.
        """
        self._notices.put((coordinator, now))

    def _send_notices(self) -> None:
        while (notice := self._notices.get()) is not None:
            slot, now = notice
            client = self._clients.get(slot)
            if client is None:
                continue
            try:
                client.notify_hosts_updated(now, HostUpdateResult.mixed)
            except Exception as error:  # noqa: BLE001  # Horovod's client raises plain Exception; the notice is repeated
                log.info("notice to %s failed: %s", slot, error)

    def close(self) -> None:
        """Stop serving."""
        self._notices.put(None)
        self._server.stop()
        self._server._httpd.server_close()  # stop() leaves the listening socket open


DEFAULTS: Mapping[str, str] = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "10",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Variables that a worker gets unless its job sets them."""


def _handler(
    on_ready: Callable[[Slot, Future[SlotInfo]], None], register: Callable[[Slot, Any, Any], None]
) -> type[RendezvousHandler]:
    class Handler(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
        def _get_value(self, scope: str, key: str) -> Any:
            if scope != GET_RANK_AND_SIZE:
                return super()._get_value(scope, key)
            place: Future[SlotInfo] = Future()
            on_ready(_slot(key), place)
            return place.result().to_response_string().encode("ascii")

        def _put_value(self, scope: str, key: str, value: Any) -> None:
            if scope == PUT_WORKER_ADDRESSES:
                addresses, secret = codec.loads_base64(value)
                register(_slot(key), addresses, secret)
            super()._put_value(scope, key, value)

    return Handler


def _slot(key: str) -> Slot:
    host, _, index = key.rpartition(":")
    return Slot(host, int(index))


NO_PLACE: SlotInfo = INVALID_SLOT_INFO
"""The answer to a worker that has no place in the new world."""
