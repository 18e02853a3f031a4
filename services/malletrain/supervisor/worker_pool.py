"""The worker processes of a job: starts them, starts them again after failures, collects their ends."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.gpus import gpu_number, visible_gpu
from malletrain.common.job_folder import worker_log
from malletrain.common.worker_process import kill_workers
from malletrain.supervisor.agent_links import AgentLinks, start_message
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.local_workers import LocalWorkers
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.restart_backoff import RestartBackoff
from malletrain.supervisor.worker import Worker
from malletrain.supervisor.worker_exit import WorkerExit

_THREADS = "OMP_NUM_THREADS"
_SWEEP_SECONDS = 0.005


class WorkerPool:
    """Workers of a job by slot, at most one for each.

    Use from one thread, which must live as long as the workers: the kernel kills a worker when the thread that started
    it ends.

    Attributes:
        failures: Number of failures by host.
    """

    def __init__(
        self,
        launch: Launch,
        logs: Path,
        defaults: Mapping[str, str],
        mark: str,
        agents: AgentLinks,
        local: LocalWorkers,
        *,
        warm: bool = True,
    ) -> None:
        """Begin without workers.

        Args:
            launch: What to run.
            logs: Folder for the workers' logs.
            defaults: Environment variables, for those that the job does not set.
            mark: Identifies this supervisor in the workers' environment; see `Reaper`.
            agents: Connections to the nodes that are not this machine.
            local: Starts the workers on this machine.
            warm: Whether a Python worker imports the modules of its script before its start.
        """
        logs.mkdir(exist_ok=True)
        self._launch = launch
        self._logs = logs
        self._defaults = defaults
        self._own = {**launch.environment, env.SUPERVISOR: mark, env.BACKEND: launch.backend}
        self._agents = agents
        self._local = local
        self._warm = warm
        self._workers: dict[Slot, Worker] = {}
        self._ended_well: list[Worker] = []
        self._backoffs: dict[Slot, RestartBackoff] = {}
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
        """Slot and process id of each worker."""
        return sorted((slot, worker.pid) for slot, worker in self._workers.items())

    def start_missing(self, slots: Iterable[Slot], now: float) -> None:
        """Start a worker in each of these slots that has none, unless the slot waits after failures.

        One that a standby process can fork soon is left for the next call.

        Args:
            slots: Slots that shall have a worker.
            now: Monotonic time in seconds.

        Raises:
            OSError: the interpreter or the working directory is missing.
        """
        for slot in slots:
            if slot not in self._workers and self._backoffs.get(slot, RestartBackoff()).over(now):
                self._start_soon(slot)

    def _start_soon(self, slot: Slot) -> None:
        log = self._logs / worker_log(slot.host, slot.local_rank)
        command, folder = self._launch.command, self._launch.working_directory
        agent = self._agents.get(slot.host)
        if agent is None:
            environment = {**self._defaults, **os.environ, **self._own, env.NODE: slot.host}
            if (gpu := gpu_number(slot.host)) is not None and env.VISIBLE_GPUS not in self._own:
                environment[env.VISIBLE_GPUS] = visible_gpu(gpu, os.environ.get(env.VISIBLE_GPUS, ""))
            if not self._local.is_worth_waiting(command, folder, environment, warm=self._warm):
                self._workers[slot] = self._local.start(slot, command, folder, environment, log, warm=self._warm)
        else:
            # Without this machine's own environment: its paths of programs and libraries may not exist there.
            # How many threads it may have is known there, too.
            environment = {**self._defaults, **self._own}
            if _THREADS not in self._own:
                environment.pop(_THREADS, None)
            message = start_message(slot, command, folder, environment, log, warm=self._warm)
            message.cold_start = self._launch.cold_start
            self._workers[slot] = agent.start(slot, message)

    def cut_remote(self, workers: Iterable[Worker]) -> None:
        """Shut down the connections among workers on other nodes."""
        self._agents.cut({worker.slot.host for worker in workers})

    def adopt(self, worker: Worker) -> None:
        """Take over a worker from another pool. Its slot must have none here."""
        self._workers[worker.slot] = worker

    def give_away(self, slot: Slot) -> Worker:
        """Remove the worker of a slot without ending it, for another pool.

        Raises:
            KeyError: the slot has none.
        """
        return self._workers.pop(slot)

    def warm(self) -> list[Slot]:
        """Slots whose worker has booted and waits for its start."""
        return [worker.slot for worker in self if worker.is_warm() and not (worker.going or worker.killed)]

    def reap(self) -> list[WorkerExit]:
        """Workers that have ended since the last call.

        The rest of a worker's process group is killed, unless the worker ended with exit status 0; see `leftovers`.
        """
        self._local.tick()
        ended = []
        for slot, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                worker.is_warm()  # updates `started`
                ended.append(
                    WorkerExit(slot, worker.pid, code, worker.started, worker.going, worker.killed, worker.hung)
                )
                worker.close()
                if code == 0:
                    self._ended_well.append(worker)
                else:
                    worker.kill()
                del self._workers[slot]
        return ended

    def leftovers(self) -> bool:
        """Whether workers that ended with 0 have left processes behind, such as a sidecar that delivers records."""
        return any(worker.has_group() for worker in self._ended_well)

    def kill_leftovers(self) -> None:
        """Kill the processes that workers which ended with 0 have left behind."""
        for worker in self._ended_well:
            worker.kill()
        self._ended_well.clear()

    def note_failure(self, slot: Slot, now: float) -> int:
        """Count a failure. The slot then waits before its worker is started again, longer after each failure.

        Args:
            slot: Slot of the worker that failed.
            now: Monotonic time in seconds.

        Returns:
            Number of the slot's recent failures.
        """
        self._backoffs[slot] = self._backoffs.get(slot, RestartBackoff()).noted(now)
        self.failures[slot.host] += 1
        return self._backoffs[slot].count

    def kill(self, workers: Iterable[Worker] | None = None) -> None:
        """Kill these workers, or all."""
        for worker in self if workers is None else workers:
            worker.kill()

    def sweep(self, hosts: frozenset[str] | None = None) -> None:
        """Kill all processes of the job's workers on these hosts, or on all, until none is left.

        Jobs of another installation on this machine may have the same identifiers, so the job's folder must be the
        same, too.
        """
        self._agents.sweep(self._launch.job_id, hosts)
        marks = {env.JOB_DIR: folder} if (folder := self._launch.environment.get(env.JOB_DIR)) else None
        while kill_workers(self._launch.job_id, hosts, marks):
            for worker in self:
                worker.poll()
            time.sleep(_SWEEP_SECONDS)
