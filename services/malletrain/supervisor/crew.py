"""The worker processes of one job: started warm, started again after a failure, reaped, swept."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.processes import BACKEND, JOB_FOLDER, NODE, SUPERVISOR, WorkerProcess, sweep
from malletrain.supervisor.remote import Agents, start_message
from malletrain.supervisor.respawn import Failures
from malletrain.supervisor.worker import Worker

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
    """All workers of a job, by slot. Use from one thread that lives as long as they shall.

    Attributes:
        failures: How many workers have failed on each host.
    """

    def __init__(
        self,
        launch: Launch,
        logs: Path,
        defaults: Mapping[str, str],
        mark: str,
        agents: Agents,
        *,
        warm: bool = True,
    ) -> None:
        """Manage workers.

        Args:
            launch: What to run.
            logs: Folder of their logs.
            defaults: Environment variables for those that the job does not set.
            mark: Names this supervisor in the workers' environment.
            agents: Those of the nodes that are not this machine.
            warm: Whether a Python script's worker imports what it needs before its start.
        """
        logs.mkdir(exist_ok=True)
        self._launch = launch
        self._logs = logs
        self._defaults = defaults
        self._own = {**launch.environment, SUPERVISOR: mark, BACKEND: launch.backend}
        self._agents = agents
        self._warm = warm
        self._workers: dict[Slot, Worker] = {}
        self._failures: dict[Slot, Failures] = {}
        self.failures: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, slot: Slot) -> Worker | None:
        """The worker of a slot."""
        return self._workers.get(slot)

    def on(self, hosts: Set[str]) -> list[Worker]:
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
        log = self._logs / f"{slot.host}.{slot.local_rank}.log"
        command, folder = self._launch.command, self._launch.working_directory
        agent = self._agents.of(slot.host)
        if agent is None:
            environment = {**self._defaults, **os.environ, **self._own, NODE: slot.host}
            self._workers[slot] = WorkerProcess(slot, command, folder, environment, log, warm=self._warm)
        else:
            # What this machine's environment says of programs and libraries need not be true there.
            environment = {**self._defaults, **self._own}
            message = start_message(slot, command, folder, environment, log, warm=self._warm)
            self._workers[slot] = agent.start(slot, message)

    def cut_off(self, workers: Iterable[Worker]) -> None:
        """Shut down the connections that workers on other nodes have among each other."""
        self._agents.cut({worker.slot.host for worker in workers})

    def adopt(self, worker: Worker) -> None:
        """Take over a worker from another crew; its slot has none here."""
        self._workers[worker.slot] = worker

    def give_away(self, slot: Slot) -> Worker:
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
        self.failures[slot.host] += 1
        return self._failures[slot].count

    def kill(self, workers: Iterable[Worker] | None = None) -> None:
        """Kill these workers, or all."""
        for worker in self if workers is None else workers:
            worker.kill()

    def sweep(self, hosts: frozenset[str] | None = None) -> None:
        """Kill what bears the job's mark on hosts, or anywhere, until nothing is left.

        Not what another installation on this machine calls by the same names: identifiers of jobs begin anew in each.
        """
        self._agents.sweep(self._launch.job_id, hosts)
        marks = {JOB_FOLDER: folder} if (folder := self._launch.environment.get(JOB_FOLDER)) else None
        while sweep(self._launch.job_id, hosts, marks):
            for worker in self:
                worker.poll()
            time.sleep(_SWEEP_SECONDS)
