"""Any program that can be restarted: it reads its hosts from a file, and is started again at every change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.files import write_atomically
from malletrain.common.job_folder import HOSTS_FILE
from malletrain.supervisor.generation_state import Hosts
from malletrain.supervisor.membership import Slot


class CommandBackend:
    """One process on the first host, as for a batch script. See `malletrain.supervisor.restarting.RestartingBackend`.

    The hosts are in the file that MALLETRAIN_HOSTFILE names, one `NAME slots=N` a line, as `mpirun --hostfile` reads
    it. At a change the program gets SIGTERM, to save and end all that it has started on other hosts.
    """

    warm = False

    def __init__(self, folder: Path) -> None:
        """Keep the file in the job's folder."""
        self._file = folder / HOSTS_FILE

    def defaults(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def is_ready(self) -> bool:
        """At once."""
        return True

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """The first."""
        return tuple(Slot(host, 0) for host, _ in hosts[:1])

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The one process, which uses all hosts of its generation."""
        used = {host for host, _ in trained}
        return frozenset(self.slots(trained)) if used & set(hosts) else frozenset()

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Write the file.

        Raises:
            OSError: it can't be written.
        """
        write_atomically(self._file, "".join(f"{host} slots={slots}\n" for host, slots in hosts))
        environment = {
            env.HOSTFILE: str(self._file),
            env.HOSTS: ",".join(f"{host}:{slots}" for host, slots in hosts),
            env.WORLD_SIZE: str(sum(slots for _, slots in hosts)),
            env.GENERATION: str(epoch),
        }
        return dict.fromkeys(self.slots(hosts), environment)

    def close(self) -> None:
        """Leave the file; it says what ran last."""
