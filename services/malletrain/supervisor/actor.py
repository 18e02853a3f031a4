"""The supervisor's one thread of decisions: commands, workers' ends and rendezvous calls come in as events.

It is the main thread, which starts every worker: the kernel ends a worker when the thread that started it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from malletrain.supervisor.backend import OpenBackend
from malletrain.supervisor.crew import Crew, Ended
from malletrain.supervisor.inbox import Inbox
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.releases import Release, Releases
from malletrain.supervisor.view import UNDECIDED, Outcome, State, view
from malletrain.supervisor.worker_command import split_python
from malletrain.supervisor.world import World
from malletrain.v1 import supervisor_pb2

_LOOK_SECONDS = 0.02
_ENDING_SECONDS = 300.0
_ENDING_SECONDS_WHEN_DONE = 10.0
_TRIES_TO_WARM = 3

log = logging.getLogger(__name__)


class Actor:
    """Owns the membership and the crew of one job."""

    def __init__(
        self, launch: Launch, folder: Path, publish: Callable[[State], None], open_backend: OpenBackend, mark: str
    ) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            launch: The job's launch.
            folder: The job's folder.
            publish: Called with every new state.
            open_backend: Starts what the workers find each other by.
            mark: Names this supervisor in the workers' environment.
        """
        self._launch = launch
        self._completed = folder / "completed.json"
        self._publish = publish
        self._inbox = Inbox(lambda: self._published)
        self._finishing_at: float | None = None
        self._kill_all_at: float | None = None
        self._outcome: Outcome = UNDECIDED
        self._message = ""
        self._published = State()
        self._backend = open_backend(
            lambda slot: self._inbox.put(lambda: self._world.came_back(slot)),
            lambda slot: self._inbox.put(lambda: self._world.registered(slot)),
        )
        defaults = self._backend.defaults(warm=split_python(launch.command) is not None)
        self._crew = Crew(launch, folder / "logs", defaults, mark)
        self._world = World(self._crew, self._backend)
        self._releases = Releases(self._crew)
        self._announce()

    # -- called from other threads ---------------------------------------------------------------------------------

    def set_hosts(self, sequence: int, hosts: dict[str, int]) -> State:
        """Use these hosts from now on; returns once the command is taken."""
        return self._inbox.ask(lambda done: self._set_hosts(sequence, hosts, done))

    def release_hosts(self, hosts: frozenset[str], grace: float) -> State:
        """Take hosts out of the job; returns once no process of it is left on them."""
        return self._inbox.ask(lambda done: self._release_hosts(hosts, grace, done))

    def stop(self, grace: float) -> State:
        """End every worker; returns once none is left."""
        return self._inbox.ask(lambda done: self._stop(grace, done))

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> State:
        """Work until every worker has ended; returns the last state."""
        assert threading.current_thread() is threading.main_thread()
        self._set_hosts(self._launch.sequence, dict(self._launch.hosts), Future())
        while self._outcome == UNDECIDED:
            self._inbox.handle(_LOOK_SECONDS)
            now = time.monotonic()
            for ended in self._crew.reap():
                self._see_end(ended, now)
            self._world.see_warm()
            self._advance(now)
            self._finish_releases(now)
            self._announce()
        self._crew.kill()
        self._crew.sweep()
        self._crew.reap()
        self._announce()
        self._inbox.close()
        self._backend.close()
        return self._published

    # -- events ----------------------------------------------------------------------------------------------------

    def _set_hosts(self, sequence: int, hosts: dict[str, int], done: Future[State]) -> None:
        hosts = {host: slots for host, slots in hosts.items() if host not in self._releases.hosts}
        if hosts and not self._stopping:
            log.info("command %d: %s", sequence, hosts)
            try:
                self._world.command(sequence, hosts, time.monotonic())
            except OSError as error:
                self._fail(f"a worker can't be started: {error}")
        done.set_result(self._state())

    def _release_hosts(self, hosts: frozenset[str], grace: float, done: Future[State]) -> None:
        log.info("release of %s within %.2f s", sorted(hosts), grace)
        membership = self._world.membership
        if membership.commanded and membership.commanded.keys() <= hosts and not self._stopping:
            self._message = "all hosts were released"
            self._stop(grace, done)
            return
        kill_at = max(time.monotonic() + grace, self._world.safe_to_kill_at(hosts))
        self._world.release(hosts)
        self._releases.add(Release(hosts, kill_at, done))
        if self._world.membership.living and not self._world.membership.has_heir:
            self._world.save_and_end()

    def _stop(self, grace: float, done: Future[State]) -> None:
        """End all; whoever asked is answered when the loop is over."""
        del done
        log.info("stop within %.2f s", grace)
        kill_at = time.monotonic() + grace
        if self._kill_all_at is not None:
            self._kill_all_at = min(self._kill_all_at, kill_at)
            return
        self._kill_all_at = kill_at
        self._world.close()
        for worker in self._crew:
            if worker.going and grace > 0:
                worker.terminate()
            else:
                worker.kill()

    def _see_end(self, ended: Ended, now: float) -> None:
        before = self._world.membership
        log.info("worker %d on %s ended with %d", ended.pid, ended.slot.host, ended.code)
        leaving = self._stopping or self._finishing_at is not None or ended.code == 0
        self._world.lose(ended, others_end=leaving)
        if self._stopping:
            return
        commanded = ended.slot.host in before.commanded and not before.closing
        in_time = ended.slot in before.living or (ended.started and not before.world)
        if ended.code == 0 and in_time and (commanded or self._completed.exists()):
            self._begin_finish(now)
        elif commanded and (ended.hung or not ended.killed):
            self._note_failure(ended, now)
        self._settle_loss()

    @property
    def _stopping(self) -> bool:
        return self._kill_all_at is not None

    # -- what follows from them ------------------------------------------------------------------------------------

    def _note_failure(self, ended: Ended, now: float) -> None:
        self._message = ended.how
        count = self._crew.note_failure(ended.slot, now)
        if self._world.membership.world or self._finishing_at is not None:
            return  # the others go on, or `_settle_loss` decides
        if ended.started or ended.going:
            self._fail(ended.how)
        elif count > _TRIES_TO_WARM:
            self._fail(f"{ended.how} before it was warm, {count} times")

    def _settle_loss(self) -> None:
        """Where nobody is left who could hand on the state, the job has failed, unless it left with hosts we took."""
        membership = self._world.membership
        if not membership.lost or self._finishing_at is not None:
            return
        if any(slot.host not in membership.commanded for slot in membership.members):
            log.info("the state has left with its hosts: a new world goes on from the checkpoint")
            self._world.dissolve()
        elif self._outcome == UNDECIDED:
            self._fail(self._message or "every worker has ended")

    def _fail(self, message: str) -> None:
        self._outcome, self._message = supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, message

    def _advance(self, now: float) -> None:
        """Move towards the world that should be."""
        if self._stopping:
            self._advance_stop(now)
        elif self._finishing_at is not None:
            self._advance_finish(now)
        else:
            self._advance_world(now)

    def _advance_world(self, now: float) -> None:
        self._world.kill_hung(now)
        self._world.advance(now)
        try:
            self._world.start_missing(now)
        except OSError as error:
            self._fail(f"a worker can't be started: {error}")

    def _advance_stop(self, now: float) -> None:
        assert self._kill_all_at is not None
        if not self._crew:
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED
        elif now >= self._kill_all_at:
            self._crew.kill()
        else:
            self._world.form_if_ready(now)

    def _begin_finish(self, now: float) -> None:
        """A worker has ended well: from here on the world only dissolves."""
        if self._finishing_at is None:
            limit = _ENDING_SECONDS_WHEN_DONE if self._completed.exists() else _ENDING_SECONDS
            self._finishing_at = now + limit

    def _advance_finish(self, now: float) -> None:
        """So will the others, or they are ended: those that wait for a new world wait in vain."""
        assert self._finishing_at is not None
        late = now >= self._finishing_at or self._world.membership.stuck
        self._crew.kill(worker for worker in self._crew if late or not worker.going)
        if not any(worker.going for worker in self._crew):
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_EXITED

    def _finish_releases(self, now: float) -> None:
        if self._releases.kill_due(now) and self._world.membership.closing:
            self._world.kill_members()
        for release in self._releases.finished():
            release.done.set_result(self._state())

    # -- what others see -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        if self._world.membership.fulfilled and not self._stopping:
            self._message = ""  # what went wrong has been mended
        state = self._state()
        if state != self._published:
            self._published = state
            self._publish(state)

    def _state(self) -> State:
        # Workers that end one after the other at the end of a training are no loss of hosts.
        membership = self._world.membership
        confirmed = membership.confirmed_hosts if self._finishing_at is None else self._published.confirmed_hosts
        return view(
            self._launch.job_id,
            membership,
            confirmed,
            self._crew.pids(),
            self._stopping,
            self._outcome,
            self._message,
        )
