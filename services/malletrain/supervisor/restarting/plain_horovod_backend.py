"""Horovod for scripts without its elastic part: a world that is fixed for each generation, as `horovodrun` makes it.

Such a script calls `hvd.init()` once and has the same ranks to its end. So all workers are restarted at every change,
and each generation meets at a rendezvous of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, HostInfo, SlotInfo, get_host_assignments
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from malletrain.common import environment as env
from malletrain.common.tasks import start_thread
from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.rendezvous.config import RendezvousConfig
from malletrain.supervisor.rendezvous.server import GuardedRendezvousServer, WorkerAddresses, host_name, world_name
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot

_GLOO_SECONDS = "60"
"""Gloo's time-out. A script may read its data before it looks for the others."""


class PlainHorovodBackend:
    """One worker per slot. See `malletrain.supervisor.restarting.backend.RestartingBackend`."""

    warm = True
    hands_over = False

    def __init__(self, rendezvous: RendezvousConfig) -> None:
        self._config = rendezvous
        self._present: _Served | None = None
        self._next: _Served | None = None

    def defaults(self) -> Mapping[str, str]:
        """Variables that a worker gets unless its job sets them."""
        return {"HOROVOD_GLOO_TIMEOUT_SECONDS": _GLOO_SECONDS, **env.TRAINER_DEFAULTS}

    def is_ready(self) -> bool:
        """Always: nothing has to be loaded first."""
        return True

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """All slots of all hosts: one worker for each."""
        return tuple(slot for entry in hosts for slot in slots_of(*entry))

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The workers on these hosts: each uses its own host alone."""
        wanted = set(hosts)
        return frozenset(slot for slot in self.slots(trained) if slot.host in wanted)

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment of the members of a generation, whose rendezvous is open from here on."""
        if self._next is None or self._next.key != (epoch, hosts):
            self._close(self._next)
            self._next = self._open(epoch, hosts)
        return self._next.places

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Open a rendezvous for the new generation alone: nothing of the one before can be in it."""
        places = self.places(epoch, hosts)
        self._close(self._present)  # the workers of the generation before have gone
        self._present, self._next = self._next, None
        return places

    def has_met(self) -> bool:
        """Whether a member has come to the rendezvous."""
        return self._present is None or self._present.world.reached

    def close(self) -> None:
        """Stop serving."""
        for served in (self._present, self._next):
            self._close(served)
        self._present = self._next = None

    def _open(self, epoch: int, hosts: Hosts) -> _Served:
        address, interfaces = self._config.address, list(self._config.interfaces)
        infos = get_host_assignments([HostInfo(world_name(host), count) for host, count in hosts], 1)
        world = _FixedWorld()
        server = GuardedRendezvousServer(address, world, self._config.admits)
        server.init(infos)
        start_thread(server.serve_forever, "rendezvous")
        run = create_run_env_vars(address, interfaces, server.server_address[1], elastic=False)

        def of(info: SlotInfo) -> dict[str, str]:
            return {name: str(value) for name, value in (run | create_slot_env_vars(info)).items()}

        places = {Slot(host_name(info.hostname), info.local_rank): of(info) for info in infos}
        return _Served((epoch, hosts), world, server, places)

    @staticmethod
    def _close(served: _Served | None) -> None:
        if served is not None:
            served.server.shutdown()
            served.server.server_close()


class _Served(NamedTuple):
    """The rendezvous of a generation, and the environment of its members."""

    key: tuple[int, Hosts]
    world: _FixedWorld
    server: GuardedRendezvousServer
    places: Mapping[Slot, Mapping[str, str]]


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
        """It takes notices, of which there are none."""
