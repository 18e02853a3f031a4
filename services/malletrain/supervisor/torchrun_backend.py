"""What torchrun's agents do for workers: set their environment, and serve the store through which they meet.

torchrun's own agents (torch 2.13) take 5 to 7 s for a change: new workers boot only once the old ones have gone, and
every node must agree on a rendezvous. Here the supervisor knows the hosts already. What workers see is unchanged:
`torch.distributed.init_process_group()` needs no argument.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from malletrain.common import environment as env
from malletrain.supervisor.generation_state import Hosts
from malletrain.supervisor.guarded_store import GuardedStore
from malletrain.supervisor.membership import Slot, slots_of
from malletrain.supervisor.rendezvous_config import RendezvousConfig

_MOST_RESTARTS = 1_000_000
"""torchrun counts every change as a restart. Scripts may print this limit; no job is ended by it here."""


class TorchrunBackend:
    """One worker per slot. See `malletrain.supervisor.restarting.RestartingBackend`."""

    warm = True

    def __init__(self, job_id: str, rendezvous: RendezvousConfig) -> None:
        """Import torch in the background, which takes a second or two.

        Args:
            job_id: The job.
            rendezvous: Where the store is served, and to whom.
        """
        self._interfaces = ",".join(rendezvous.interfaces)
        self._job_id = job_id
        self._address = rendezvous.address
        self._admits = rendezvous.admits
        self._torch: Any = None
        self._error: ImportError | None = None
        self._store: GuardedStore | None = None
        threading.Thread(target=self._import, name="import torch", daemon=True).start()

    def _import(self) -> None:
        try:
            import torch.distributed
        except ImportError as error:
            self._error = error
        else:
            self._torch = torch

    def defaults(self) -> Mapping[str, str]:
        """Those that torchrun sets, and the interfaces for Gloo and NCCL: a node may have several."""
        return {
            **env.TRAINER_DEFAULTS,
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
        """All of them."""
        return tuple(slot for entry in hosts for slot in slots_of(*entry))

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """Those on these hosts."""
        wanted = set(hosts)
        return frozenset(slot for slot in self.slots(trained) if slot.host in wanted)

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Open a store for the new generation alone: nothing of the one before can be in it.

        It is served on this machine, never on a harvested node.
        """
        self.close()  # the workers of the generation before have gone
        self._store = GuardedStore(self._torch.distributed.TCPStore, self._address, self._admits)
        slots = self.slots(hosts)
        ranks = {slot: rank for rank, slot in enumerate(slots)}
        groups = {host: (group, count) for group, (host, count) in enumerate(hosts)}
        shared = {
            "WORLD_SIZE": len(slots),
            "GROUP_WORLD_SIZE": len(hosts),
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": len(slots),
            "MASTER_ADDR": self._address,
            "MASTER_PORT": self._store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": epoch - 1,
            "TORCHELASTIC_MAX_RESTARTS": _MOST_RESTARTS,
            "TORCHELASTIC_RUN_ID": self._job_id,
        }

        def of(slot: Slot) -> dict[str, str]:
            group, count = groups[slot.host]
            own = {"LOCAL_RANK": slot.local_rank, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": group}
            ranked = {"RANK": ranks[slot], "ROLE_RANK": ranks[slot]}
            return {name: str(value) for name, value in (shared | own | ranked).items()}

        return {slot: of(slot) for slot in slots}

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None
