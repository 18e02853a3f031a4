"""The workers of a job on this machine, and the standby process from which they are forked."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from malletrain.common.cgroups import Cgroups, group_name
from malletrain.common.handover_memory import HandoverMemories
from malletrain.common.log_times import LogTimesWriter
from malletrain.common.oom_kills import OomKills
from malletrain.common.orphans import adopt_orphans, reap_orphans
from malletrain.common.processes import lower_priority
from malletrain.common.standby.child import STANDBY_VARIABLE
from malletrain.common.standby.config import standby_config_for
from malletrain.common.standby.manager import StandbyManager
from malletrain.common.standby.process import StandbyProcess, adopt_standby
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker import LocalWorker

NICENESS = 10

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.5
"""For the end of all processes in a cgroup that were killed, which takes milliseconds."""
_LAST_LOOK_SECONDS = 1.0
"""For the last look at the logs, on a disk that may not answer."""


class LocalWorkers:
    """Starts the workers of this machine, and collects their exit status. Use from the main thread only."""

    def __init__(self, manager: StandbyManager, own_pids: Iterable[int] = (), groups: Cgroups | None = None) -> None:
        """Become the parent of what workers leave behind, and of workers that are forked.

        Args:
            own_pids: Children of this process that are no workers.
            groups: The cgroups of the nodes that are this machine; None: there are none.

        Raises:
            OSError: the kernel does not know how.
        """
        self._manager = manager
        self._own = frozenset(own_pids)
        self._groups = Cgroups(None, log.warning) if groups is None else groups
        self._workers: dict[int, LocalWorker] = {}
        self._oom_kills = OomKills()
        self._log_times = LogTimesWriter(log.warning)
        self._logs: dict[int, Path] = {}  # of workers, by process id
        self._handovers = HandoverMemories()
        self._urgent = set[int]()  # workers whose priority is to be lowered
        adopt_orphans()

    def start(
        self, slot: Slot, command: Iterable[str], folder: str, environment: Mapping[str, str], file: Path, *, warm: bool
    ) -> LocalWorker:
        """Start a worker; see `WorkerProcess`.

        Raises:
            OSError: the interpreter or the folder is missing.
        """
        group = self._groups.make(_group_of(slot.host))
        worker = LocalWorker(
            slot,
            command,
            folder,
            environment,
            file,
            warm=warm,
            standby=self._manager,
            group=group,
            handover=self._handovers.of(*slot),
        )
        worker.oom_kills = self._oom_kills
        self._log_times.watch(file)
        self._logs[worker.pid] = file
        self._workers[worker.pid] = worker
        self._urgent.add(worker.pid)
        return worker

    def watch_logs(self, files: Iterable[Path]) -> None:
        """Have written down when these logs grow, as it is done for those of workers."""
        self._log_times.watch(*files)

    def is_worth_waiting(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], *, warm: bool
    ) -> bool:
        """Whether a worker had better be started later, since it can be forked soon."""
        return warm and self._manager.is_worth_waiting(command, folder, environment)

    def tick(self) -> None:
        """Look after the standby process, and collect what workers have left behind. Call it often."""
        self._oom_kills.look(time.monotonic())
        self._workers = {pid: worker for pid, worker in self._workers.items() if worker.poll() is None}
        self._forget_logs()
        self._urgent = {pid for pid in self._urgent & self._workers.keys() if not lower_priority(pid, NICENESS)}
        self._manager.tick(busy=any(not worker.is_warm() for worker in self._workers.values()))
        reap_orphans({*self._workers, *self._own, self._manager.pid})

    def _forget_logs(self) -> None:
        """Look no longer at the logs of workers that have ended."""
        for pid in self._logs.keys() - self._workers.keys():
            ended = self._logs.pop(pid)
            if ended not in self._logs.values():
                self._log_times.forget(ended)

    def end_all_on(self, hosts: Iterable[str] | None) -> None:
        """End all that workers on these hosts have started, or on all, as far as cgroups tell; free what they left."""
        self._handovers.close(hosts)
        for name in self._groups.names() if hosts is None else map(_group_of, hosts):
            self._groups.end(name, _PATIENCE_SECONDS)

    def close(self) -> None:
        """End the standby process, and look at the logs for the last time."""
        self._manager.close()
        self._handovers.close()
        self._log_times.close(_LAST_LOOK_SECONDS)


def _group_of(host: str) -> str:
    return group_name("place", host)


def open_local_workers(
    cold_start: bool, memory_bytes: int, own_pids: Iterable[int], groups: Cgroups | None = None
) -> LocalWorkers:
    """The local workers of this supervisor, with the standby process that was forked beside it, if there is one.

    Args:
        cold_start: Whether each worker must be a new interpreter.
        memory_bytes: Largest share of memory of a standby process.
        own_pids: Children of this process that are no workers.
        groups: The cgroups of the nodes that are this machine; None: there are none.
    """
    standby = _adopt_inherited()
    if cold_start and standby is not None:
        standby.close()
        standby = None
    config = None if standby is None else standby_config_for(sys.executable, os.environ)
    limit = 0 if cold_start else memory_bytes
    manager = StandbyManager(log.info, config=config, memory_bytes=limit, standby=standby)
    return LocalWorkers(manager, own_pids, groups)


def _adopt_inherited() -> StandbyProcess | None:
    numbers = os.environ.pop(STANDBY_VARIABLE, "").split(":")
    return adopt_standby(int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None
