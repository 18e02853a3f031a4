"""The supervisor's one thread of decisions: commands, workers' ends and other news come in as events.

It is the main thread, which starts every worker: the kernel ends a worker when the thread that started it ends.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.job_folder import COMPLETION_FILE, LOGS_FOLDER, STOP_REQUESTS_FOLDER
from malletrain.supervisor.agent_links import AgentLinks
from malletrain.supervisor.call_queue import CallQueue
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.releases import Occupants, Release, Releases
from malletrain.supervisor.view import UNDECIDED, CommandProgress, Outcome, Seen, State, view
from malletrain.supervisor.worker_exit import WorkerExit
from malletrain.supervisor.worker_pool import WorkerPool
from malletrain.v1 import supervisor_pb2

_LOOK_SECONDS = 0.02
_ENDING_SECONDS = 300.0
"""How long rank 0 may take to end after others have ended with exit status 0: it may evaluate, or save."""
_OTHERS_SECONDS = 10.0
"""How long the others may take to end after rank 0."""
_DELIVERY_SECONDS = 4.0
"""How long rank 0's sidecar may take to deliver its last records; it gives up after 3 s by itself."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """One job, and what there is to drive it by.

    Attributes:
        launch: The job's launch.
        folder: The job's folder.
        publish: Called with every new state.
        mark: Names this supervisor in the workers' environment.
        agents: Those of the nodes that are not this machine.
        record: Writes the outcome to the job's folder.
    """

    launch: Launch
    folder: Path
    publish: Callable[[State], None]
    mark: str
    agents: AgentLinks
    record: Callable[[Outcome, str], None]

    def pool(self, defaults: Mapping[str, str], *, warm: bool = True) -> WorkerPool:
        """An empty pool; see `WorkerPool`."""
        return WorkerPool(self.launch, self.folder / LOGS_FOLDER, defaults, self.mark, self.agents, warm=warm)


class EventLoop(ABC):
    """Owns the workers of one job: what all kinds of worlds have in common."""

    def __init__(self, context: Context, occupants: Occupants, members: WorkerPool) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what there is to drive it by.
            occupants: The job's processes by host.
            members: The workers that train.
        """
        self._trainers = members
        self._record = context.record
        self._stop_asked = False
        self._winding_down_since: float | None = None
        self._stop_requests = context.folder / STOP_REQUESTS_FOLDER
        shutil.rmtree(self._stop_requests, ignore_errors=True)
        self.agents = context.agents
        self.launch = context.launch
        self.completed = context.folder / COMPLETION_FILE
        self.releases = Releases(occupants)
        self.message = ""
        self._publish = context.publish
        self._calls = CallQueue(lambda: self._published)
        self._finishing_at: float | None = None
        self._kill_all_at: float | None = None
        self._outcome: Outcome = UNDECIDED
        self._published = State()

    # -- called from other threads ---------------------------------------------------------------------------------

    def set_hosts(self, sequence: int, hosts: dict[str, int], agents: Mapping[str, str]) -> State:
        """Use these hosts from now on; returns once the command is taken.

        Args:
            sequence: Grows with every command.
            hosts: Host to worker processes there.
            agents: Where the agents are of those that are not this machine.
        """

        def act(done: Future[State]) -> None:
            self.agents.update(agents)
            self._set_hosts(sequence, hosts, done)

        return self._calls.ask(act)

    def release_hosts(self, hosts: frozenset[str], grace: float) -> State:
        """Take hosts out of the job; returns once no process of it is left on them."""
        return self._calls.ask(lambda done: self._release_hosts(hosts, grace, done))

    def stop(self, grace: float) -> State:
        """End every worker; returns once none is left."""
        return self._calls.ask(lambda done: self._stop(grace, done))

    def expect_stop(self) -> None:
        """A stop will follow: workers that end from now on may have been asked to, as this process was.

        Safe in a signal handler.
        """
        self._stop_asked = True

    def later(self, act: Callable[[], None]) -> None:
        """Have something done in the thread of decisions."""
        self._calls.put(act)

    # -- what a kind of world does ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def progress(self) -> CommandProgress:
        """How far it is."""

    @property
    @abstractmethod
    def fulfilled(self) -> bool:
        """Whether it is what is commanded."""

    @abstractmethod
    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts on which it trains."""

    @abstractmethod
    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""

    @abstractmethod
    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Its processes."""

    @abstractmethod
    def command(self, sequence: int, hosts: dict[str, int], now: float) -> None:
        """Take over a command.

        Raises:
            OSError: a worker can't be started.
        """

    @abstractmethod
    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Take hosts out of it; returns when what is left there is to be killed, in monotonic seconds."""

    @abstractmethod
    def reap(self, now: float) -> None:
        """See which workers have ended."""

    @abstractmethod
    def advance(self, now: float) -> None:
        """Move towards the world that should be.

        Raises:
            OSError: a worker can't be started.
            ImportError: something that the backend needs is missing.
        """

    @abstractmethod
    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end."""

    @abstractmethod
    def advance_stop(self, now: float, kill: bool) -> bool:
        """Have all end, or kill them; whether nobody is left."""

    @abstractmethod
    def advance_finish(self, late: bool) -> bool:
        """The training is over: end those that do not by themselves; whether nobody is left who trained."""

    @abstractmethod
    def killed_late(self, now: float) -> None:
        """Workers on released hosts have been killed at the end of their grace."""

    @abstractmethod
    def close(self) -> None:
        """End all that is left."""

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> State:
        """Work until every worker has ended; returns the last state."""
        assert threading.current_thread() is threading.main_thread()
        self._announce()
        self._set_hosts(self.launch.sequence, dict(self.launch.hosts), Future())
        while self._outcome == UNDECIDED:
            self._calls.handle(_LOOK_SECONDS)
            now = time.monotonic()
            self.reap(now)
            if not self.finishing:
                self._trainers.kill_leftovers()
            self._advance(now)
            self._finish_releases(now)
            self._announce()
        self.close()
        self.agents.close()
        self._announce()
        self._calls.close()
        return self._published

    # -- events ----------------------------------------------------------------------------------------------------

    def _set_hosts(self, sequence: int, hosts: dict[str, int], done: Future[State]) -> None:
        hosts = {host: slots for host, slots in hosts.items() if host not in self.releases.hosts}
        if hosts and not (self.stopping or self.finishing):
            log.info("command %d: %s", sequence, hosts)
            try:
                self.command(sequence, hosts, time.monotonic())
            except OSError as error:
                self.fail(f"a worker can't be started: {error}")
        done.set_result(self._state())

    def _release_hosts(self, hosts: frozenset[str], grace: float, done: Future[State]) -> None:
        log.info("release of %s within %.2f s", sorted(hosts), grace)
        if self.progress.commanded and self.progress.commanded.keys() <= hosts and not self.stopping:
            self.message = "all hosts were released"
            self._stop(grace, done)
            return
        self.releases.add(Release(hosts, self.release(hosts, grace, time.monotonic()), done))

    def _stop(self, grace: float, done: Future[State]) -> None:
        """End all; whoever asked is answered when the loop is over."""
        del done
        log.info("stop within %.2f s", grace)
        kill_at = time.monotonic() + grace
        if self._kill_all_at is not None:
            self._kill_all_at = min(self._kill_all_at, kill_at)
            return
        self._kill_all_at = kill_at
        self.begin_stop(grace)

    # -- for the kinds of worlds -----------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether all are being ended on command."""
        return self._kill_all_at is not None

    def asked_to_stop(self, ended: WorkerExit) -> bool:
        """Whether a worker was asked to stop: with all others, on command, or by a STOP that came through Monitor."""
        return self.stopping or self._stop_asked or (self._stop_requests / str(ended.pid)).exists()

    @property
    def finishing(self) -> bool:
        """Whether the training is over."""
        return self._finishing_at is not None

    def fail(self, message: str) -> None:
        """The job can't go on."""
        self._outcome, self.message = supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, message

    def begin_finish(self, message: str, now: float) -> None:
        """The training is over, whatever happens from here on; the workers that are left get a short time to end.

        The outcome is written at once, so that it outlives a kill of this process.
        """
        if self._finishing_at is not None:
            return
        log.info("the training is over: %s", message)
        self._finishing_at = now
        self.message = message
        try:
            self._record(supervisor_pb2.SUPERVISOR_OUTCOME_EXITED, message)
        except OSError as error:
            log.warning("the outcome can't be written yet: %s", error)

    # -- what follows ----------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._finishing_at is not None:
            self._advance_finish(now, self._finishing_at)
        elif self._kill_all_at is not None:
            if self.advance_stop(now, now >= self._kill_all_at):
                self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED
        else:
            self._limit_winding_down(now)
            try:
                self.advance(now)
            except (OSError, ImportError) as error:
                self.fail(f"a worker can't be started: {error}")

    def _advance_finish(self, now: float, since: float) -> None:
        kill_at = since + _OTHERS_SECONDS
        if self._kill_all_at is not None:
            kill_at = min(kill_at, self._kill_all_at)
        gone = self.advance_finish(now >= kill_at)
        if gone and (now >= min(kill_at, since + _DELIVERY_SECONDS) or not self._trainers.leftovers()):
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_EXITED

    def _limit_winding_down(self, now: float) -> None:
        if not self.progress.winding_down:
            self._winding_down_since = None
        elif self._winding_down_since is None:
            self._winding_down_since = now
        elif now >= self._winding_down_since + _ENDING_SECONDS:
            self.fail(f"rank 0 has not ended within {_ENDING_SECONDS:g} s after other workers had, with exit status 0")

    def _finish_releases(self, now: float) -> None:
        if self.releases.kill_due(now):
            self.killed_late(now)
        for release in self.releases.finished():
            release.done.set_result(self._state())

    # -- what others see -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        if self.fulfilled and not (self.stopping or self.finishing):
            self.message = ""  # what went wrong has been mended
        state = self._state()
        if state != self._published:
            self._published = state
            self._publish(state)

    def _state(self) -> State:
        # Workers that end one after the other at the end of a training are no loss of hosts.
        ending = self.finishing or self.progress.winding_down
        confirmed = self._published.confirmed_hosts if ending else self.confirmed_hosts()
        seen = Seen(self.progress, tuple(confirmed), tuple(self.pids()), dict(self.failures()))
        return view(self.launch.job_id, seen, self.stopping, self._outcome, self.message)


def end_of(ended: WorkerExit) -> None:
    """Note in the log that a worker has ended."""
    log.info("worker %d on %s ended with %d", ended.pid, ended.slot.host, ended.code)


def how_it_ended(ended: WorkerExit, members: int) -> str:
    """Why the training is over, for people.

    Args:
        ended: Rank 0.
        members: How many trained.
    """
    return f"{'rank 0' if members > 1 else 'its process'} on {ended.slot.host} ended with exit status 0"
