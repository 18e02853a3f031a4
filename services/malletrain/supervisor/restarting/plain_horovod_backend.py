"""Horovod for scripts without its elastic part: a world that is fixed for each generation, as `horovodrun` makes it.

Such a script calls `hvd.init()` once and has the same ranks to its end. So all workers are restarted at every change,
and each generation meets at a rendezvous of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, HostInfo, SlotInfo, get_host_assignments
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from malletrain.common import environment as env
from malletrain.common.tasks import start_thread
from malletrain.supervisor.rendezvous.connection_filters import RendezvousConfig
from malletrain.supervisor.rendezvous.server import GuardedRendezvousServer, WorkerAddresses, host_name, world_name
from malletrain.supervisor.restarting.backend import Meeting, MeetingBackend
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot

_GLOO_SECONDS = "60"
"""Gloo's time-out. A script may read its data before it looks for the others."""


class PlainHorovodBackend(MeetingBackend):
    """Each generation meets at a rendezvous of its own. See `malletrain.supervisor.restarting.backend`."""

    def __init__(self, rendezvous: RendezvousConfig) -> None:
        super().__init__()
        self._config = rendezvous

    def defaults(self) -> Mapping[str, str]:
        """How long its workers wait for each other, and what every trainer gets."""
        return {"HOROVOD_GLOO_TIMEOUT_SECONDS": _GLOO_SECONDS, **env.TRAINER_DEFAULTS}

    def open_meeting(self, epoch: int, hosts: Hosts) -> Meeting:
        """Serve the rendezvous of a generation."""
        del epoch
        address, interfaces = self._config.address, list(self._config.interfaces)
        infos = get_host_assignments([HostInfo(world_name(host), count) for host, count in hosts], 1)
        world = _FixedWorld()
        server = GuardedRendezvousServer(address, world, self._config.admits)
        server.init(infos)
        start_thread(server.serve_forever, "rendezvous")
        run = create_run_env_vars(address, interfaces, server.server_address[1], elastic=False)

        def of(info: SlotInfo) -> dict[str, str]:
            return {name: str(value) for name, value in (run | create_slot_env_vars(info)).items()}

        def close() -> None:
            server.shutdown()
            server.server_close()

        environments = {Slot(host_name(info.hostname), info.local_rank): of(info) for info in infos}
        return Meeting(environments, lambda: world.reached, close)


class _FixedWorld:
    """What the rendezvous is told, and is asked by elastic workers only.

    Attributes:
        reached: Whether a worker has begun to connect.
    """

    def __init__(self) -> None:
        self.reached = False

    def place_of(self, slot: Slot) -> SlotInfo:
        """A place that is none: the world does not change."""
        del slot
        return INVALID_SLOT_INFO

    def show_up(self, rank: int) -> None:
        """Note that the worker of a rank begins to connect."""
        del rank
        self.reached = True

    def register(self, slot: Slot, addresses: WorkerAddresses, key: bytes) -> None:
        """Do nothing: there are no notices that it could take."""
