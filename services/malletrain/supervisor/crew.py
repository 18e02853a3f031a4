"""The worker processes of one job: started warm, started again after a failure, reaped, swept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Slot, slots_of
from malletrain.supervisor.processes import WorkerProcess, sweep

_FIRST_RESPAWN_SECONDS = 0.5
_LONGEST_RESPAWN_SECONDS = 15.0
_SWEEP_SECONDS = 0.005


@dataclass(frozen=True)
class Ended:
    """A worker that has ended: its exit status, negative for a signal, and whether its trainer had started."""

    slot: Slot
    pid: int
    code: int
    going: bool


@dataclass(frozen=True)
class _Respawn:
    """How often a slot's worker has failed, and when it may be started again (monotonic seconds)."""

    count: int
    at: float


class Crew:
    """All workers of a job, by slot. Use from one thread that lives as long as they shall."""

    def __init__(self, launch: Launch, logs: Path, defaults: Mapping[str, str]) -> None:
        """Manage workers.

        Args:
            launch: What to run.
            logs: Folder of their logs.
            defaults: Environment variables for those that the job does not set.
        """
        logs.mkdir(exist_ok=True)
        self._launch = launch
        self._logs = logs
        self._environment = {**defaults, **os.environ, **launch.environment}
        self._workers: dict[Slot, WorkerProcess] = {}
        self._respawns: dict[Slot, _Respawn] = {}

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, slot: Slot) -> WorkerProcess | None:
        """The worker of a slot."""
        return self._workers.get(slot)

    def on(self, hosts: Set[str]) -> list[WorkerProcess]:
        """The workers on hosts."""
        return [worker for worker in self if worker.slot.host in hosts]

    def pids(self) -> list[tuple[Slot, int]]:
        """Slot and process id of every worker."""
        return sorted((slot, worker.pid) for slot, worker in self._workers.items())

    def start_missing(self, hosts: Mapping[str, int], now: float) -> None:
        """Start a process on every slot that has none and need not wait.

        Raises:
            OSError: the interpreter or the working folder is missing.
        """
        for slot in (slot for host, count in hosts.items() for slot in slots_of(host, count)):
            respawn = self._respawns.get(slot)
            if slot not in self._workers and (respawn is None or now >= respawn.at):
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        environment = self._environment | {"MALLETRAIN_NODE": slot.host}
        log = self._logs / f"{slot.host}.{slot.local_rank}.log"
        self._workers[slot] = WorkerProcess(
            slot, self._launch.command, self._launch.working_directory, environment, log
        )

    def newly_warm(self) -> list[Slot]:
        """Slots whose worker has become warm since the last call."""
        return [worker.slot for worker in self if not worker.going and worker.is_warm()]

    def reap(self) -> list[Ended]:
        """Workers that have ended since the last call; what is left of their groups is killed."""
        ended = []
        for slot, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                worker.close()
                worker.kill()
                del self._workers[slot]
                ended.append(Ended(slot, worker.pid, code, worker.going))
        return ended

    def note_failure(self, slot: Slot, now: float) -> int:
        """Let a slot wait before its worker is started again, longer each time; returns how often it has failed."""
        count = self._respawns[slot].count + 1 if slot in self._respawns else 1
        pause = min(_FIRST_RESPAWN_SECONDS * 2 ** (count - 1), _LONGEST_RESPAWN_SECONDS)
        self._respawns[slot] = _Respawn(count, now + pause)
        return count

    def kill(self, workers: Iterable[WorkerProcess] | None = None) -> None:
        """Kill these workers, or all."""
        for worker in self if workers is None else workers:
            worker.kill()

    def sweep(self, hosts: frozenset[str] | None = None) -> None:
        """Kill what bears the job's mark on hosts, or anywhere, until nothing is left."""
        while sweep(self._launch.job_id, hosts):
            for worker in self:
                worker.poll()
            time.sleep(_SWEEP_SECONDS)
