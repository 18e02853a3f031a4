"""The worker processes of one job: started warm, started again after a failure, reaped, swept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.processes import BACKEND, NODE, SUPERVISOR, WorkerProcess, sweep
from malletrain.supervisor.respawn import Failures

_SWEEP_SECONDS = 0.005


@dataclass(frozen=True)
class Ended:
    """A worker that has ended.

    Attributes:
        slot: Its place.
        pid: Its process id.
        code: Exit status, negative for a signal.
        started: Whether the job's own code ran.
        going: Whether it had been told to go.
        killed: Whether it was the supervisor that killed it.
        hung: Whether that was because it hung.
    """

    slot: Slot
    pid: int
    code: int
    started: bool
    going: bool
    killed: bool
    hung: bool

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.hung:
            how = "hung, killed"
        else:
            how = f"killed by signal {-self.code}" if self.code < 0 else f"exit status {self.code}"
        return f"worker on {self.slot.host}: {how}"


class Crew:
    """All workers of a job, by slot. Use from one thread that lives as long as they shall."""

    def __init__(
        self, launch: Launch, logs: Path, defaults: Mapping[str, str], mark: str, *, warm: bool = True
    ) -> None:
        """Manage workers.

        Args:
            launch: What to run.
            logs: Folder of their logs.
            defaults: Environment variables for those that the job does not set.
            mark: Names this supervisor in the workers' environment.
            warm: Whether a Python script's worker imports what it needs before its start.
        """
        logs.mkdir(exist_ok=True)
        self._launch = launch
        self._logs = logs
        self._environment = {**defaults, **os.environ, **launch.environment, SUPERVISOR: mark, BACKEND: launch.backend}
        self._warm = warm
        self._workers: dict[Slot, WorkerProcess] = {}
        self._failures: dict[Slot, Failures] = {}

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

    def start_missing(self, slots: Iterable[Slot], now: float) -> None:
        """Start a process on each of these slots that has none and need not wait.

        Raises:
            OSError: the interpreter or the working folder is missing.
        """
        for slot in slots:
            if slot not in self._workers and self._failures.get(slot, Failures()).over(now):
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        environment = self._environment | {NODE: slot.host}
        log = self._logs / f"{slot.host}.{slot.local_rank}.log"
        self._workers[slot] = WorkerProcess(
            slot, self._launch.command, self._launch.working_directory, environment, log, warm=self._warm
        )

    def adopt(self, worker: WorkerProcess) -> None:
        """Take over a worker from another crew; its slot has none here."""
        self._workers[worker.slot] = worker

    def give_away(self, slot: Slot) -> WorkerProcess:
        """Let go of a slot's worker, for another crew.

        Raises:
            KeyError: it has none.
        """
        return self._workers.pop(slot)

    def warm(self) -> list[Slot]:
        """Slots whose worker waits for its start."""
        return [worker.slot for worker in self if worker.is_warm() and not (worker.going or worker.killed)]

    def reap(self) -> list[Ended]:
        """Workers that have ended since the last call; what is left of their groups is killed."""
        ended = []
        for slot, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                worker.is_warm()  # what it said last
                ended.append(Ended(slot, worker.pid, code, worker.started, worker.going, worker.killed, worker.hung))
                worker.close()
                worker.kill()
                del self._workers[slot]
        return ended

    def note_failure(self, slot: Slot, now: float) -> int:
        """Let a slot wait before its worker is started again, longer each time; returns how often it has failed."""
        self._failures[slot] = self._failures.get(slot, Failures()).noted(now)
        return self._failures[slot].count

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
