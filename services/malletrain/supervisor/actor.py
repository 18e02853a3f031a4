"""The supervisor's one thread of decisions: commands, workers' ends and rendezvous calls come in as events.

It is the main thread, which starts every worker: the kernel ends a worker when the thread that started it ends.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from malletrain.supervisor.horovod_world import NO_PLACE, HorovodWorld, SlotInfo, defaults
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Membership, Slot, slots_of
from malletrain.supervisor.processes import WorkerProcess, sweep
from malletrain.v1 import supervisor_pb2

_LOOK_SECONDS = 0.02
_NOTICE_SECONDS = 0.5
_WARM_SECONDS = 30.0
_ENDING_SECONDS = 300.0
_ENDING_SECONDS_WHEN_DONE = 10.0
_FIRST_RESPAWN_SECONDS = 0.5
_LONGEST_RESPAWN_SECONDS = 15.0
_RESPAWNS_BEFORE_FAILURE = 3

log = logging.getLogger(__name__)


@dataclass
class Release:
    """Hosts on their way out: killed at `kill_at` (monotonic seconds), then `done` gets the state."""

    hosts: frozenset[str]
    kill_at: float
    done: Future[supervisor_pb2.SupervisorState]
    killed: bool = False


@dataclass
class Respawn:
    """When a slot whose worker ended may be started again, and how often that has been."""

    count: int
    at: float


class Actor:
    """Owns the membership and the worker processes of one job."""

    def __init__(self, launch: Launch, folder: Path, publish: Callable[[supervisor_pb2.SupervisorState], None]) -> None:
        self._launch = launch
        self._completed = folder / "completed.json"
        self._logs = folder / "logs"
        self._logs.mkdir(exist_ok=True)
        self._publish = publish
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._membership = Membership()
        self._workers: dict[Slot, WorkerProcess] = {}
        self._waiting: dict[Slot, Future[SlotInfo]] = {}
        self._releases: list[Release] = []
        self._respawns: dict[Slot, Respawn] = {}
        self._next_notice = 0.0
        self._finishing_at: float | None = None
        self._stopping: Release | None = None
        self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED
        self._message = ""
        self._was_confirmed = False
        self._published = supervisor_pb2.SupervisorState()
        self._world = HorovodWorld(
            lambda slot, place: self._post(lambda: self._came_back(slot, place)),
            lambda slot: self._post(lambda: self._registered(slot)),
        )

    # -- called from other threads ---------------------------------------------------------------------------------

    def set_hosts(self, sequence: int, hosts: dict[str, int]) -> supervisor_pb2.SupervisorState:
        """Use these hosts from now on; returns once the command is taken."""
        return self._ask(lambda done: self._set_hosts(sequence, hosts, done))

    def release_hosts(self, hosts: frozenset[str], grace: float) -> supervisor_pb2.SupervisorState:
        """Take hosts out of the job; returns once no process of it is left on them."""
        return self._ask(lambda done: self._release_hosts(hosts, grace, done))

    def stop(self, grace: float) -> supervisor_pb2.SupervisorState:
        """End every worker; returns once none is left."""
        return self._ask(lambda done: self._stop(grace, done))

    def _ask(self, act: Callable[[Future[supervisor_pb2.SupervisorState]], None]) -> supervisor_pb2.SupervisorState:
        done: Future[supervisor_pb2.SupervisorState] = Future()
        self._post(lambda: act(done))
        return done.result()

    def _post(self, event: Callable[[], None]) -> None:
        self._events.put(event)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> supervisor_pb2.SupervisorState:
        """Work until every worker has ended; returns the last state."""
        assert threading.current_thread() is threading.main_thread()
        self._post(lambda: self._set_hosts(self._launch.sequence, dict(self._launch.hosts), Future()))
        while self._outcome == supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED:
            self._handle_events()
            now = time.monotonic()
            self._reap(now)
            self._see_warm_workers()
            self._advance(now)
            self._finish_releases(now)
            self._announce()
        for worker in self._workers.values():
            worker.kill()
        self._sweep_until_clean(None)
        self._workers.clear()
        for place in self._waiting.values():
            place.set_result(NO_PLACE)
        self._announce()
        self._resolve_all()
        self._world.close()
        return self._state()

    def _handle_events(self) -> None:
        try:
            self._events.get(timeout=_LOOK_SECONDS)()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            return

    def _resolve_all(self) -> None:
        """Answer everybody who still waits: there is nothing left that they could wait for."""
        for release in self._releases:
            release.done.set_result(self._state())
        self._releases.clear()
        if self._stopping is not None:
            self._stopping.done.set_result(self._state())

    # -- events ----------------------------------------------------------------------------------------------------

    def _set_hosts(self, sequence: int, hosts: dict[str, int], done: Future[supervisor_pb2.SupervisorState]) -> None:
        releasing = {host for release in self._releases for host in release.hosts}
        hosts = {host: slots for host, slots in hosts.items() if host not in releasing}
        if hosts and self._stopping is None:
            self._membership = self._membership.command(sequence, hosts, time.monotonic() + _WARM_SECONDS)
            log.info("command %d: %s", sequence, hosts)
            self._next_notice = 0.0
            self._start_missing(time.monotonic())
            self._end_unwanted()
        done.set_result(self._state())

    def _release_hosts(self, hosts: frozenset[str], grace: float, done: Future[supervisor_pb2.SupervisorState]) -> None:
        log.info("release of %s within %.2f s", sorted(hosts), grace)
        left = self._membership.release(hosts)
        if not left.commanded and self._membership.commanded and self._stopping is None:
            self._stop(grace, done)
            return
        self._membership = left
        self._next_notice = 0.0
        self._end_unwanted()
        self._releases.append(Release(hosts, time.monotonic() + grace, done))

    def _stop(self, grace: float, done: Future[supervisor_pb2.SupervisorState]) -> None:
        log.info("stop within %.2f s", grace)
        if self._stopping is not None:
            first, done_too = self._stopping.done, done
            first.add_done_callback(lambda future: done_too.set_result(future.result()))
            self._stopping.kill_at = min(self._stopping.kill_at, time.monotonic() + grace)
            return
        self._stopping = Release(frozenset(), time.monotonic() + grace, done)
        self._membership = self._membership.frozen()
        for worker in self._workers.values():
            if worker.going and grace > 0:
                worker.terminate()
            else:
                worker.kill()

    def _came_back(self, slot: Slot, place: Future[SlotInfo]) -> None:
        if slot not in self._membership.living:
            place.set_result(NO_PLACE)
            return
        self._waiting[slot] = place
        self._membership = self._membership.came_back(slot)

    def _registered(self, slot: Slot) -> None:
        self._membership = self._membership.registered(slot)

    # -- what follows from them ------------------------------------------------------------------------------------

    def _start_missing(self, now: float) -> None:
        """Start a process on every commanded slot that has none and need not wait."""
        for host, count in self._membership.commanded.items():
            for slot in slots_of(host, count):
                respawn = self._respawns.get(slot)
                if slot not in self._workers and (respawn is None or now >= respawn.at):
                    self._start(slot)

    def _start(self, slot: Slot) -> None:
        environment = {**os.environ, **self._launch.environment}
        environment |= defaults(environment) | {"MALLETRAIN_NODE": slot.host}
        path = self._logs / f"{slot.host}.{slot.local_rank}.log"
        try:
            worker = WorkerProcess(slot, self._launch.command, self._launch.working_directory, environment, path)
        except OSError as error:
            self._fail(f"a worker can't be started on {slot.host}: {error}")
            return
        self._workers[slot] = worker

    def _end_unwanted(self) -> None:
        """Kill at once what is on hosts that are no longer commanded and not in the world: nobody waits for it."""
        members = set(self._membership.members)
        for slot, worker in self._workers.items():
            if slot.host not in self._membership.commanded and slot not in members:
                worker.kill()

    def _see_warm_workers(self) -> None:
        for slot, worker in self._workers.items():
            if not worker.going and slot not in self._membership.warm and worker.is_warm():
                self._membership = self._membership.became_warm(slot)

    def _reap(self, now: float) -> None:
        for slot, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                worker.close()
                worker.kill()  # what is left of its group
                del self._workers[slot]
                self._ended(slot, worker, code, now)

    def _ended(self, slot: Slot, worker: WorkerProcess, code: int, now: float) -> None:
        was_member = slot in self._membership.living
        self._waiting.pop(slot, None)
        self._membership = self._membership.ended(slot)
        wanted = slot.host in self._membership.commanded
        log.info("worker %s on %s ended with %d", worker.pid, slot, code)
        if self._stopping is not None:
            return
        if worker.going and code == 0 and was_member:
            self._begin_finish(now)
        elif wanted:
            self._note_failure(slot, worker, code, now)

    def _note_failure(self, slot: Slot, worker: WorkerProcess, code: int, now: float) -> None:
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        self._message = f"worker on {slot.host}: {how}"
        if worker.going and not self._membership.living and self._finishing_at is None:
            self._fail(self._message)
            return
        count = self._respawns[slot].count + 1 if slot in self._respawns else 1
        if not worker.going and count > _RESPAWNS_BEFORE_FAILURE and not self._membership.living:
            self._fail(f"{self._message} before it was warm, {count} times")
            return
        pause = min(_FIRST_RESPAWN_SECONDS * 2 ** (count - 1), _LONGEST_RESPAWN_SECONDS)
        self._respawns[slot] = Respawn(count, now + pause)

    def _fail(self, message: str) -> None:
        self._outcome, self._message = supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, message

    def _advance(self, now: float) -> None:
        """Move towards the world that should be."""
        if self._stopping is not None:
            self._advance_stop(now)
            return
        if self._finishing_at is not None:
            self._advance_finish(now)
            return
        self._start_missing(now)
        if self._membership.can_form(now):
            self._form(now)
        elif self._membership.change_due(now) and not self._membership.joining and now >= self._next_notice:
            self._notify(now)

    def _notify(self, now: float) -> None:
        """Tell rank 0; again until the change has happened, since a notice that meets a reset is lost."""
        coordinator = next((slot for slot in self._membership.members if slot in self._membership.living), None)
        if coordinator is not None:
            self._world.notify(coordinator, time.time())
            self._next_notice = now + _NOTICE_SECONDS

    def _form(self, now: float) -> None:
        self._membership, formation = self._membership.form(now)
        places = self._world.assign(formation)
        log.info("world %d: %s", formation.epoch, dict(formation.hosts))
        for slot in formation.newcomers:
            if slot in self._workers:
                self._workers[slot].go(self._world.environment(places[slot]))
        for slot, place in self._waiting.items():
            if slot in places:
                place.set_result(places[slot])
        for slot in formation.removed:
            # It waits for a place that it does not get; its state lives on in the survivors.
            if slot in self._workers:
                self._workers[slot].kill()
        for slot in set(self._waiting) - set(places):
            self._waiting[slot].set_result(NO_PLACE)
        self._waiting.clear()
        self._membership = self._membership.settled()
        self._next_notice = now + _NOTICE_SECONDS

    def _advance_stop(self, now: float) -> None:
        assert self._stopping is not None
        if not self._workers:
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED
        elif now >= self._stopping.kill_at:
            for worker in self._workers.values():
                worker.kill()
        elif self._membership.can_form(now):
            self._form(now)

    def _begin_finish(self, now: float) -> None:
        """A worker has ended well: from here on the world only dissolves."""
        if self._finishing_at is None:
            limit = _ENDING_SECONDS_WHEN_DONE if self._completed.exists() else _ENDING_SECONDS
            self._finishing_at = now + limit

    def _advance_finish(self, now: float) -> None:
        """So will the others, or they are ended."""
        assert self._finishing_at is not None
        for worker in self._workers.values():
            if not worker.going or now >= self._finishing_at:
                worker.kill()
        if not any(worker.going for worker in self._workers.values()):
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_EXITED

    def _finish_releases(self, now: float) -> None:
        for release in list(self._releases):
            left = [worker for slot, worker in self._workers.items() if slot.host in release.hosts]
            if left:
                if now >= release.kill_at and not release.killed:
                    release.killed = True
                    for worker in left:
                        worker.kill()
                continue
            self._sweep_until_clean(release.hosts)
            self._releases.remove(release)
            release.done.set_result(self._state())

    def _sweep_until_clean(self, hosts: frozenset[str] | None) -> None:
        while sweep(self._launch.job_id, hosts):
            for worker in self._workers.values():
                worker.poll()
            time.sleep(_LOOK_SECONDS / 4)

    # -- what others see -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        state = self._state()
        if state != self._published:
            self._published = state
            self._publish(state)

    def _state(self) -> supervisor_pb2.SupervisorState:
        membership = self._membership
        self._was_confirmed = self._was_confirmed or bool(membership.confirmed_sequence)
        return supervisor_pb2.SupervisorState(
            job_id=self._launch.job_id,
            phase=self._phase(),
            commanded_sequence=membership.sequence,
            commanded_hosts=[supervisor_pb2.Host(name=name, slots=n) for name, n in membership.commanded.items()],
            confirmed_sequence=membership.confirmed_sequence,
            # Workers that end one after the other are no loss of hosts.
            confirmed_hosts=(
                membership.confirmed_hosts if self._finishing_at is None else self._published.confirmed_hosts
            ),
            workers=[
                supervisor_pb2.WorkerProcess(host=slot.host, local_rank=slot.local_rank, pid=worker.pid)
                for slot, worker in sorted(self._workers.items())
            ],
            outcome=self._outcome,
            message=self._message,
        )

    def _phase(self) -> supervisor_pb2.SupervisorPhase.ValueType:
        if self._outcome != supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED:
            return supervisor_pb2.SUPERVISOR_PHASE_ENDED
        if self._stopping is not None:
            return supervisor_pb2.SUPERVISOR_PHASE_STOPPING
        running = self._was_confirmed
        return supervisor_pb2.SUPERVISOR_PHASE_RUNNING if running else supervisor_pb2.SUPERVISOR_PHASE_STARTING
