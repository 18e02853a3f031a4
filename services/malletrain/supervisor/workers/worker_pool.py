"""The worker processes of a job: starts them, starts them again after failures, collects their ends."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.activity import ActivityWatch, Idleness
from malletrain.common.backoff import pause_after
from malletrain.common.gpu_use import gpu_is_busy
from malletrain.common.gpus import gpu_number, visible_gpu
from malletrain.common.job_folder import DELIVERY_SECONDS as SIDECAR_SECONDS
from malletrain.common.job_folder import worker_log
from malletrain.common.launch_file import Launch
from malletrain.common.worker_process import kill_workers
from malletrain.supervisor.workers.agent_links import AgentLinks, start_message
from malletrain.supervisor.workers.failure_watch import LogTails
from malletrain.supervisor.workers.local_workers import LocalWorkers
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker import LocalWorker, Worker
from malletrain.supervisor.workers.worker_exit import WorkerExit

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 15.0
_WINDOW_SECONDS = 600.0
_MAX_FAILURES = 6


@dataclass(frozen=True)
class RestartBackoff:
    """The failures of a slot within ten minutes.

    Each failure of a member costs the others a rollback, so the pause doubles from failure to failure. After six
    failures the slot has no worker until the first of them is ten minutes old.

    Attributes:
        times: Times of the failures, in monotonic seconds, ascending.
    """

    times: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """Number of failures."""
        return len(self.times)

    def after_failure(self, now: float) -> RestartBackoff:
        """The state after one more failure."""
        recent = (time for time in self.times if now - time < _WINDOW_SECONDS)
        return RestartBackoff((*recent, now)[-_MAX_FAILURES:])

    def over(self, now: float) -> bool:
        """Whether the worker may be started."""
        if not self.times:
            return True
        if self.count >= _MAX_FAILURES:
            return now - self.times[0] >= _WINDOW_SECONDS
        return now - self.times[-1] >= pause_after(self.count, _FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)


log = logging.getLogger(__name__)

_THREADS = "OMP_NUM_THREADS"
_SWEEP_SECONDS = 0.005

DELIVERY_SECONDS = SIDECAR_SECONDS + 1.0
"""How long a sidecar has after the end of its trainer, while the job goes on."""


@dataclass
class EndedWorker:
    """A worker whose process has ended, while processes of its session may be left.

    Attributes:
        since: When the rest of its process group was killed, in monotonic seconds; None: not yet.
    """

    worker: Worker
    since: float | None = None


class WorkerPool:
    """Workers of a job by slot, at most one for each.

    Use from one thread, which must live as long as the workers: the kernel kills a worker when the thread that started
    it ends.

    Attributes:
        failures: Number of failures by host.
        tails: What workers have said at their end.
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
        """
        Args:
            defaults: Environment variables, for those that the job does not set.
            mark: Identifies this supervisor in the workers' environment; see `Reaper`.
            agents: Connections to the nodes that are not this machine.
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
        self._ended: list[EndedWorker] = []
        self._backoffs: dict[Slot, RestartBackoff] = {}
        self._anew: set[Slot] = set()
        self._watch = ActivityWatch(gpu_is_busy)
        self.failures: Counter[str] = Counter()
        self.tails = LogTails(logs)

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

    def idleness(self, now: float) -> list[Idleness | None]:
        """Whether the workers do nothing, as far as is known, for each place that has any.

        Args:
            now: Monotonic time in seconds.
        """
        here = [worker.pid for worker in self if isinstance(worker, LocalWorker)]
        places = [self._watch.look(here, now)] if here else []
        hosts = {worker.slot.host for worker in self if not isinstance(worker, LocalWorker)}
        return [*places, *self._agents.idleness(hosts)]

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
        self.tails.begin(slot)
        agent = self._agents.get(slot.host)
        if agent is None:
            own = {env.NODE: slot.host, env.PYTHON: sys.executable}
            environment = {**self._defaults, **os.environ, **self._own, **own}
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
        self.tails.begin(worker.slot)
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

    def prepare(self, places: Mapping[Slot, Mapping[str, str]]) -> list[Slot]:
        """Have workers that have booted and wait get ready for these places.

        Returns:
            Slots of those that were told another place, and were killed; see `kill_misplaced`.
        """
        killed = self.kill_misplaced(places)
        for slot in self.warm():
            worker = self._workers[slot]
            if worker.place is None and slot in places:
                worker.prepare(places[slot])
                self._anew.discard(slot)
        return killed

    def kill_misplaced(self, places: Mapping[Slot, Mapping[str, str]]) -> list[Slot]:
        """Kill workers that were told another place than these: their code may have asked for it.

        Returns:
            Their slots.
        """
        known_places = {slot: self._workers[slot].place for slot in self.warm() if slot in places}
        wrong = [slot for slot, place in known_places.items() if place not in (None, places[slot])]
        self.kill(self._workers[slot] for slot in wrong)
        self._anew.update(wrong)
        if wrong:
            log.info("told another place than they have now, so others are started: %s", sorted(wrong))
        return wrong

    def prepared(self) -> list[Slot]:
        """Slots whose worker has got ready for its place, and waits for its start."""
        return [slot for slot in self.warm() if self._workers[slot].is_prepared()]

    def is_preparing(self, slots: Iterable[Slot]) -> bool:
        """Whether a worker of these slots gets ready for its place, or boots again for it after it was told another."""
        wanted, prepared = set(slots), set(self.prepared())
        return not self._anew.isdisjoint(wanted) or any(
            slot not in prepared and self._workers[slot].place is not None for slot in wanted & set(self.warm())
        )

    def reap(self) -> list[WorkerExit]:
        """Workers that have ended since the last call.

        The rest of a worker's process group is killed, unless it ended with exit status 0; see `kill_leftovers`.
        """
        self._local.tick()
        ended = []
        for slot, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                worker.is_warm()  # updates `started`
                ended.append(_exit_of(worker, code))
                worker.close()
                self._ended.append(EndedWorker(worker))
                if code != 0:
                    worker.kill()
                del self._workers[slot]
        return ended

    def leftovers(self, hosts: Set[str] | None = None) -> bool:
        """Whether workers that have ended on these hosts, or on all, have left processes behind.

        Such as a sidecar, which delivers what has been reported and then ends.
        """
        meant = (ended.worker for ended in self._ended if hosts is None or ended.worker.slot.host in hosts)
        return any(worker.has_session() for worker in meant)

    def kill_leftovers(self, now: float) -> None:
        """Kill what workers that have ended have left behind: a sidecar once it has had the time to deliver.

        Args:
            now: Monotonic time in seconds.
        """
        for ended in self._ended:
            if ended.since is None:
                ended.since = now
                ended.worker.kill()
            elif now >= ended.since + DELIVERY_SECONDS:
                ended.worker.kill_session()
        self._ended = [ended for ended in self._ended if ended.worker.has_session()]

    def note_failure(self, slot: Slot, now: float) -> int:
        """Count a failure. The slot then waits before its worker is started again, longer after each failure.

        Args:
            slot: Slot of the worker that failed.
            now: Monotonic time in seconds.

        Returns:
            Number of the slot's recent failures.
        """
        self._anew.discard(slot)
        self._backoffs[slot] = self._backoffs.get(slot, RestartBackoff()).after_failure(now)
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
        self._local.end_all_on(hosts)
        marks = {env.JOB_DIR: folder} if (folder := self._launch.environment.get(env.JOB_DIR)) else None
        while kill_workers(self._launch.job_id, hosts, marks):
            for worker in self:
                worker.poll()
            time.sleep(_SWEEP_SECONDS)


def _exit_of(worker: Worker, code: int) -> WorkerExit:
    return WorkerExit(
        worker.slot,
        worker.pid,
        code,
        started=worker.started,
        going=worker.going,
        killed=worker.killed,
        hung=worker.hung,
        lost=worker.lost,
        out_of_memory=worker.out_of_memory,
    )
