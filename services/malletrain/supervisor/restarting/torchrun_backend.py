"""What torchrun's agents do for workers: set their environment, and serve the store through which they meet.

torchrun's own agents (torch 2.13) take 5 to 7 s for a change: new workers boot only once the old ones have gone, and
every node must agree on a rendezvous. Here the supervisor knows the hosts already. What workers see is unchanged:
`torch.distributed.init_process_group()` needs no argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from malletrain.common import environment as env
from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits
from malletrain.common.tasks import start_thread
from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.rendezvous.config import RendezvousConfig
from malletrain.supervisor.rendezvous.guarded_store import GuardedStore
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot

_MAX_RESTARTS = 1_000_000
"""torchrun counts every change as a restart. Scripts may print this limit; no job is ended by it here."""


class TorchrunBackend:
    """One worker per slot. See `malletrain.supervisor.restarting.backend.RestartingBackend`."""

    warm = True
    hands_over = True

    def __init__(self, job_id: str, rendezvous: RendezvousConfig, limits: JobLimits = DEFAULT_LIMITS) -> None:
        """Import torch in the background, which takes a second or two.

        Args:
            limits: How long what the job does may take, and so how long its workers may wait for each other.
        """
        self._collective_seconds = math.ceil(limits.collective)
        self._interfaces = ",".join(rendezvous.interfaces)
        self._job_id = job_id
        self._address = rendezvous.address
        self._admits = rendezvous.admits
        self._may_be_open = rendezvous.accepts_open_store
        self._torch: Any = None
        self._error: ImportError | None = None
        self._store: GuardedStore | None = None
        self._next: _Store | None = None
        start_thread(self._import, "import torch", self._note_failure)

    def _import(self) -> None:
        import torch.distributed

        self._torch = torch

    def _note_failure(self, error: BaseException) -> None:
        """Whatever ends the import, the job must not wait for its end: a damaged torch raises more than ImportError."""
        self._error = error if isinstance(error, ImportError) else ImportError(f"torch can't be imported: {error!r}")

    def defaults(self) -> Mapping[str, str]:
        """Those that torchrun sets, interfaces for Gloo and NCCL, as a node may have several, and their time limit."""
        return {
            **env.TRAINER_DEFAULTS,
            env.COLLECTIVE_SECONDS: str(self._collective_seconds),
            "GLOO_SOCKET_IFNAME": self._interfaces,
            "NCCL_SOCKET_IFNAME": self._interfaces,
        }

    def is_ready(self) -> bool:
        """Whether torch has been imported.

        Raises:
            ImportError: it can't be.
        """
        if self._error is not None:
            raise self._error
        return self._torch is not None

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """All slots of all hosts: one worker for each."""
        return tuple(slot for entry in hosts for slot in slots_of(*entry))

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The workers on these hosts: each uses its own host alone."""
        wanted = set(hosts)
        return frozenset(slot for slot in self.slots(trained) if slot.host in wanted)

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment of the members of a generation, whose store is open from here on."""
        if self._next is None or self._next.key != (epoch, hosts):
            self._close_next()
            opened = GuardedStore(
                self._torch.distributed.TCPStore, self._address, self._admits, may_be_open=self._may_be_open
            )
            self._next = _Store((epoch, hosts), opened)
        return self._environments(epoch, hosts, self._next.store.port)

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Open a store for the new generation alone: nothing of the one before can be in it.

        It is served on this machine, never on a harvested node.
        """
        places = self.places(epoch, hosts)
        if self._store is not None:
            self._store.close()  # the workers of the generation before have gone
        self._store, self._next = self._next and self._next.store, None
        return places

    def _environments(self, epoch: int, hosts: Hosts, port: int) -> Mapping[Slot, Mapping[str, str]]:
        slots = self.slots(hosts)
        ranks = {slot: rank for rank, slot in enumerate(slots)}
        groups = {host: (group, count) for group, (host, count) in enumerate(hosts)}
        shared = {
            "WORLD_SIZE": len(slots),
            "GROUP_WORLD_SIZE": len(hosts),
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": len(slots),
            "MASTER_ADDR": self._address,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": epoch - 1,
            "TORCHELASTIC_MAX_RESTARTS": _MAX_RESTARTS,
            "TORCHELASTIC_RUN_ID": self._job_id,
        }

        def of(slot: Slot) -> dict[str, str]:
            group, count = groups[slot.host]
            own = {"LOCAL_RANK": slot.local_rank, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": group}
            ranked = {"RANK": ranks[slot], "ROLE_RANK": ranks[slot]}
            return {name: str(value) for name, value in (shared | own | ranked).items()}

        return {slot: of(slot) for slot in slots}

    def has_met(self) -> bool:
        """Whether a member has connected to the store."""
        return self._store is None or self._store.reached

    def close(self) -> None:
        """Close the stores."""
        self._close_next()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _close_next(self) -> None:
        if self._next is not None:
            self._next.store.close()
            self._next = None


class _Store(NamedTuple):
    """The store of a generation that has not been formed yet, and which one that is."""

    key: tuple[int, Hosts]
    store: GuardedStore
