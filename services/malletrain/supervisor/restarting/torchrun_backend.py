"""What torchrun's agents do for workers: set their environment, and serve the store through which they meet.

torchrun's own agents (torch 2.13) take 5 to 7 s for a change: new workers boot only once the old ones have gone, and
every node must agree on a rendezvous. Here the supervisor knows the hosts already. What workers see is unchanged:
`torch.distributed.init_process_group()` needs no argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from malletrain.common import environment as env
from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits
from malletrain.common.tasks import start_thread
from malletrain.supervisor.rendezvous.connection_filters import RendezvousConfig
from malletrain.supervisor.rendezvous.guarded_store import GuardedStore
from malletrain.supervisor.restarting.backend import Meeting, MeetingBackend
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot

_MAX_RESTARTS = 1_000_000
"""torchrun counts every change as a restart. Scripts may print this limit; no job is ended by it here."""


class TorchrunBackend(MeetingBackend):
    """Each generation meets at a store of its own. See `malletrain.supervisor.restarting.backend`."""

    hands_over = True

    def __init__(self, job_id: str, rendezvous: RendezvousConfig, limits: JobLimits = DEFAULT_LIMITS) -> None:
        """Import torch in the background, which takes a second or two.

        Args:
            limits: How long what the job does may take, and so how long its workers may wait for each other.
        """
        super().__init__()
        self._collective_seconds = math.ceil(limits.collective)
        self._interfaces = ",".join(rendezvous.interfaces)
        self._job_id = job_id
        self._address = rendezvous.address
        self._admits = rendezvous.admits
        self._may_be_open = rendezvous.accepts_open_store
        self._torch: Any = None
        self._error: ImportError | None = None
        start_thread(self._import, "import torch", self._note_failure)

    def _import(self) -> None:
        import torch.distributed

        self._torch = torch

    def _note_failure(self, error: BaseException) -> None:
        """Whatever ends the import, the job must not wait for its end: a damaged torch raises more than ImportError."""
        self._error = error if isinstance(error, ImportError) else ImportError(f"torch can't be imported: {error!r}")

    def defaults(self) -> Mapping[str, str]:
        """The variables that torchrun sets, and for Gloo and NCCL the interfaces and the time limit."""
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

    def open_meeting(self, epoch: int, hosts: Hosts) -> Meeting:
        """Serve the store of a generation."""
        torch_store = self._torch.distributed.TCPStore
        store = GuardedStore(torch_store, self._address, self._admits, may_be_open=self._may_be_open)
        return Meeting(self._environments(epoch, hosts, store.port), lambda: store.reached, store.close)

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
