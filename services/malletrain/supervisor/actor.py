"""The supervisor's one thread of decisions: commands, workers' ends and rendezvous calls come in as events.

It is the main thread, which starts every worker: the kernel ends a worker when the thread that started it ends.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from malletrain.supervisor.crew import Crew, Ended
from malletrain.supervisor.horovod_world import DEFAULTS, NO_PLACE, HorovodWorld, SlotInfo
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Membership, Slot
from malletrain.v1 import supervisor_pb2

_LOOK_SECONDS = 0.02
_NOTICE_SECONDS = 0.5
_WARM_SECONDS = 30.0
_ENDING_SECONDS = 300.0
_ENDING_SECONDS_WHEN_DONE = 10.0
_TRIES_TO_WARM = 3
_ANSWER_SECONDS = 0.2

log = logging.getLogger(__name__)

State = supervisor_pb2.SupervisorState


@dataclass
class Release:
    """Hosts on their way out: killed at `kill_at` (monotonic seconds), then `done` gets the state."""

    hosts: frozenset[str]
    kill_at: float
    done: Future[State]
    killed: bool = False


class Actor:
    """Owns the membership and the crew of one job."""

    def __init__(self, launch: Launch, folder: Path, publish: Callable[[State], None]) -> None:
        self._launch = launch
        self._completed = folder / "completed.json"
        self._publish = publish
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._over = threading.Event()
        self._membership = Membership()
        self._crew = Crew(launch, folder / "logs", DEFAULTS)
        self._waiting: dict[Slot, Future[SlotInfo]] = {}
        self._releases: list[Release] = []
        self._next_notice = 0.0
        self._finishing_at: float | None = None
        self._stopping: Release | None = None
        self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED
        self._message = ""
        self._published = State()
        self._world = HorovodWorld(
            lambda slot, place: self._events.put(lambda: self._came_back(slot, place)),
            lambda slot: self._events.put(lambda: self._registered(slot)),
        )

    # -- called from other threads ---------------------------------------------------------------------------------

    def set_hosts(self, sequence: int, hosts: dict[str, int]) -> State:
        """Use these hosts from now on; returns once the command is taken."""
        return self._ask(lambda done: self._set_hosts(sequence, hosts, done))

    def release_hosts(self, hosts: frozenset[str], grace: float) -> State:
        """Take hosts out of the job; returns once no process of it is left on them."""
        return self._ask(lambda done: self._release_hosts(hosts, grace, done))

    def stop(self, grace: float) -> State:
        """End every worker; returns once none is left."""
        return self._ask(lambda done: self._stop(grace, done))

    def _ask(self, act: Callable[[Future[State]], None]) -> State:
        done: Future[State] = Future()
        self._events.put(lambda: act(done))
        while not self._over.is_set():
            try:
                return done.result(_ANSWER_SECONDS)
            except TimeoutError:
                continue  # the job may have ended before it got to this
        return self._published

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> State:
        """Work until every worker has ended; returns the last state."""
        assert threading.current_thread() is threading.main_thread()
        self._set_hosts(self._launch.sequence, dict(self._launch.hosts), Future())
        while self._outcome == supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED:
            self._handle_events()
            now = time.monotonic()
            for ended in self._crew.reap():
                self._see_end(ended, now)
            for slot in self._crew.newly_warm():
                self._membership = self._membership.became_warm(slot)
            self._advance(now)
            self._finish_releases(now)
            self._announce()
        self._crew.kill()
        self._crew.sweep()
        self._crew.reap()
        for place in self._waiting.values():
            place.set_result(NO_PLACE)
        self._announce()
        self._over.set()
        self._world.close()
        return self._published

    def _handle_events(self) -> None:
        try:
            self._events.get(timeout=_LOOK_SECONDS)()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            return

    # -- events ----------------------------------------------------------------------------------------------------

    def _set_hosts(self, sequence: int, hosts: dict[str, int], done: Future[State]) -> None:
        releasing = {host for release in self._releases for host in release.hosts}
        hosts = {host: slots for host, slots in hosts.items() if host not in releasing}
        if hosts and self._stopping is None:
            now = time.monotonic()
            self._membership = self._membership.command(sequence, hosts, now + _WARM_SECONDS)
            log.info("command %d: %s", sequence, hosts)
            self._next_notice = 0.0
            self._start_missing(now)
            self._end_unwanted()
        done.set_result(self._state())

    def _release_hosts(self, hosts: frozenset[str], grace: float, done: Future[State]) -> None:
        log.info("release of %s within %.2f s", sorted(hosts), grace)
        left = self._membership.release(hosts)
        if not left.commanded and self._membership.commanded and self._stopping is None:
            self._stop(grace, done)
            return
        self._membership = left
        self._next_notice = 0.0
        self._end_unwanted()
        self._releases.append(Release(hosts, time.monotonic() + grace, done))

    def _stop(self, grace: float, done: Future[State]) -> None:
        """End all; whoever asked is answered when the loop is over."""
        del done
        log.info("stop within %.2f s", grace)
        kill_at = time.monotonic() + grace
        if self._stopping is not None:
            self._stopping.kill_at = min(self._stopping.kill_at, kill_at)
            return
        self._stopping = Release(frozenset(), kill_at, Future())
        self._membership = self._membership.frozen()
        for worker in self._crew:
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

    def _see_end(self, ended: Ended, now: float) -> None:
        was_member = ended.slot in self._membership.living
        self._waiting.pop(ended.slot, None)
        self._membership = self._membership.ended(ended.slot)
        log.info("worker %d on %s ended with %d", ended.pid, ended.slot.host, ended.code)
        if self._stopping is not None:
            return
        if ended.going and ended.code == 0 and was_member:
            self._begin_finish(now)
        elif ended.slot.host in self._membership.commanded:
            self._note_failure(ended, now)

    # -- what follows from them ------------------------------------------------------------------------------------

    def _start_missing(self, now: float) -> None:
        try:
            self._crew.start_missing(self._membership.commanded, now)
        except OSError as error:
            self._fail(f"a worker can't be started: {error}")

    def _end_unwanted(self) -> None:
        """Kill at once what is on hosts that are no longer commanded and not in the world: nobody waits for it."""
        kept = set(self._membership.commanded) | {slot.host for slot in self._membership.members}
        self._crew.kill(worker for worker in self._crew if worker.slot.host not in kept)

    def _note_failure(self, ended: Ended, now: float) -> None:
        how = f"killed by signal {-ended.code}" if ended.code < 0 else f"exit status {ended.code}"
        self._message = f"worker on {ended.slot.host}: {how}"
        count = self._crew.note_failure(ended.slot, now)
        if self._membership.living or self._finishing_at is not None:
            return
        if ended.going:
            self._fail(self._message)
        elif count > _TRIES_TO_WARM:
            self._fail(f"{self._message} before it was warm, {count} times")

    def _fail(self, message: str) -> None:
        self._outcome, self._message = supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, message

    def _advance(self, now: float) -> None:
        """Move towards the world that should be."""
        if self._stopping is not None:
            self._advance_stop(now)
        elif self._finishing_at is not None:
            self._advance_finish(now)
        else:
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
            if (worker := self._crew.get(slot)) is not None:
                worker.go(self._world.environment(places[slot]))
        for slot in formation.removed:
            # It waits for a place that it does not get; its state lives on in the survivors.
            if (worker := self._crew.get(slot)) is not None:
                worker.kill()
        for slot, place in self._waiting.items():
            place.set_result(places.get(slot, NO_PLACE))
        self._waiting.clear()
        self._next_notice = now + _NOTICE_SECONDS

    def _advance_stop(self, now: float) -> None:
        assert self._stopping is not None
        if not self._crew:
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED
        elif now >= self._stopping.kill_at:
            self._crew.kill()
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
        late = now >= self._finishing_at
        self._crew.kill(worker for worker in self._crew if late or not worker.going)
        if not any(worker.going for worker in self._crew):
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_EXITED

    def _finish_releases(self, now: float) -> None:
        for release in list(self._releases):
            left = self._crew.on(release.hosts)
            if left and now >= release.kill_at and not release.killed:
                release.killed = True
                self._crew.kill(left)
            if not left:
                self._crew.sweep(release.hosts)
                self._releases.remove(release)
                release.done.set_result(self._state())

    # -- what others see -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        state = self._state()
        if state != self._published:
            self._published = state
            self._publish(state)

    def _state(self) -> State:
        membership = self._membership
        # Workers that end one after the other at the end of a training are no loss of hosts.
        finishing = self._finishing_at is not None
        return State(
            job_id=self._launch.job_id,
            phase=self._phase(),
            commanded_sequence=membership.sequence,
            commanded_hosts=[supervisor_pb2.Host(name=name, slots=n) for name, n in membership.commanded.items()],
            confirmed_sequence=membership.confirmed_sequence,
            confirmed_hosts=self._published.confirmed_hosts if finishing else membership.confirmed_hosts,
            workers=[
                supervisor_pb2.WorkerProcess(host=slot.host, local_rank=slot.local_rank, pid=pid)
                for slot, pid in self._crew.pids()
            ],
            outcome=self._outcome,
            message=self._message,
        )

    def _phase(self) -> supervisor_pb2.SupervisorPhase.ValueType:
        if self._outcome != supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED:
            return supervisor_pb2.SUPERVISOR_PHASE_ENDED
        if self._stopping is not None:
            return supervisor_pb2.SUPERVISOR_PHASE_STOPPING
        if self._membership.confirmed_sequence:
            return supervisor_pb2.SUPERVISOR_PHASE_RUNNING
        return supervisor_pb2.SUPERVISOR_PHASE_STARTING
