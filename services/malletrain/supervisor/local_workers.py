"""The workers of a job on this machine, and the standby process from which they are forked."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from malletrain.common.orphans import adopt_orphans, reap_orphans
from malletrain.common.standby.child import STANDBY_VARIABLE
from malletrain.common.standby.keeper import StandbyKeeper
from malletrain.common.standby.process import StandbyProcess, adopt_standby
from malletrain.common.standby.recipe import recipe_for
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.priority import lower_priority
from malletrain.supervisor.worker import LocalWorker

log = logging.getLogger(__name__)


class LocalWorkers:
    """Starts and collects them. Use from the main thread only."""

    def __init__(self, keeper: StandbyKeeper, own_pids: Iterable[int] = ()) -> None:
        """Become the parent of what workers leave behind, and of workers that are forked.

        Args:
            keeper: Keeps the standby process.
            own_pids: Children of this process that are no workers.

        Raises:
            OSError: the kernel does not know how.
        """
        self._keeper = keeper
        self._own = frozenset(own_pids)
        self._workers: dict[int, LocalWorker] = {}
        self._urgent = set[int]()  # workers whose priority is to be lowered
        adopt_orphans()

    def start(
        self, slot: Slot, command: Iterable[str], folder: str, environment: Mapping[str, str], file: Path, *, warm: bool
    ) -> LocalWorker:
        """Start a worker; see `WorkerProcess`.

        Raises:
            OSError: the interpreter or the folder is missing.
        """
        worker = LocalWorker(slot, command, folder, environment, file, warm=warm, standby=self._keeper)
        self._workers[worker.pid] = worker
        self._urgent.add(worker.pid)
        return worker

    def is_worth_waiting(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], *, warm: bool
    ) -> bool:
        """Whether a worker had better be started later, since it can be forked soon."""
        return warm and self._keeper.is_worth_waiting(command, folder, environment)

    def tick(self) -> None:
        """Look after the standby process, and collect what workers have left behind. Call it often."""
        self._workers = {pid: worker for pid, worker in self._workers.items() if worker.poll() is None}
        self._urgent = {pid for pid in self._urgent & self._workers.keys() if not lower_priority(pid)}
        self._keeper.tick(busy=any(not worker.is_warm() for worker in self._workers.values()))
        reap_orphans({*self._workers, *self._own, self._keeper.pid})

    def close(self) -> None:
        """End the standby process."""
        self._keeper.close()


def open_local_workers(cold_start: bool, memory_bytes: int, own_pids: Iterable[int]) -> LocalWorkers:
    """The local workers of this supervisor, with the standby process that was forked beside it, if there is one.

    Args:
        cold_start: Whether each worker must be a new interpreter.
        memory_bytes: Largest share of memory of a standby process.
        own_pids: Children of this process that are no workers.
    """
    standby = _inherited()
    if cold_start and standby is not None:
        standby.close()
        standby = None
    recipe = None if standby is None else recipe_for(sys.executable, os.environ)
    limit = 0 if cold_start else memory_bytes
    keeper = StandbyKeeper(log.info, recipe=recipe, memory_bytes=limit, standby=standby)
    return LocalWorkers(keeper, own_pids)


def _inherited() -> StandbyProcess | None:
    numbers = os.environ.pop(STANDBY_VARIABLE, "").split(":")
    return adopt_standby(int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None
