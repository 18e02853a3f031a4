"""The supervisor's one thread of decisions: commands, workers' ends and other news come in as events.

It is the main thread, which starts every worker: the kernel ends a worker when the thread that started it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from malletrain.supervisor.crew import Crew, Ended
from malletrain.supervisor.inbox import Inbox
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.releases import Occupants, Release, Releases
from malletrain.supervisor.remote import Agents
from malletrain.supervisor.view import UNDECIDED, Course, Outcome, Seen, State, view
from malletrain.v1 import supervisor_pb2

_LOOK_SECONDS = 0.02
_ENDING_SECONDS = 300.0
_ENDING_SECONDS_WHEN_DONE = 10.0

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
    """

    launch: Launch
    folder: Path
    publish: Callable[[State], None]
    mark: str
    agents: Agents

    def crew(self, defaults: Mapping[str, str], *, warm: bool = True) -> Crew:
        """An empty crew; see `Crew`."""
        return Crew(self.launch, self.folder / "logs", defaults, self.mark, self.agents, warm=warm)


class Actor(ABC):
    """Owns the workers of one job: what all kinds of worlds have in common."""

    def __init__(self, context: Context, occupants: Occupants) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what there is to drive it by.
            occupants: The job's processes by host.
        """
        self.agents = context.agents
        self.launch = context.launch
        self.completed = context.folder / "completed.json"
        self.releases = Releases(occupants)
        self.message = ""
        self._publish = context.publish
        self._inbox = Inbox(lambda: self._published)
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
            self.agents.know(agents)
            self._set_hosts(sequence, hosts, done)

        return self._inbox.ask(act)

    def release_hosts(self, hosts: frozenset[str], grace: float) -> State:
        """Take hosts out of the job; returns once no process of it is left on them."""
        return self._inbox.ask(lambda done: self._release_hosts(hosts, grace, done))

    def stop(self, grace: float) -> State:
        """End every worker; returns once none is left."""
        return self._inbox.ask(lambda done: self._stop(grace, done))

    def later(self, act: Callable[[], None]) -> None:
        """Have something done in the thread of decisions."""
        self._inbox.put(act)

    # -- what a kind of world does ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def course(self) -> Course:
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
            self._inbox.handle(_LOOK_SECONDS)
            now = time.monotonic()
            self.reap(now)
            self._advance(now)
            self._finish_releases(now)
            self._announce()
        self.close()
        self.agents.close()
        self._announce()
        self._inbox.close()
        return self._published

    # -- events ----------------------------------------------------------------------------------------------------

    def _set_hosts(self, sequence: int, hosts: dict[str, int], done: Future[State]) -> None:
        hosts = {host: slots for host, slots in hosts.items() if host not in self.releases.hosts}
        if hosts and not self.stopping:
            log.info("command %d: %s", sequence, hosts)
            try:
                self.command(sequence, hosts, time.monotonic())
            except OSError as error:
                self.fail(f"a worker can't be started: {error}")
        done.set_result(self._state())

    def _release_hosts(self, hosts: frozenset[str], grace: float, done: Future[State]) -> None:
        log.info("release of %s within %.2f s", sorted(hosts), grace)
        if self.course.commanded and self.course.commanded.keys() <= hosts and not self.stopping:
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

    @property
    def finishing(self) -> bool:
        """Whether the training is over."""
        return self._finishing_at is not None

    def fail(self, message: str) -> None:
        """The job can't go on."""
        self._outcome, self.message = supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, message

    def begin_finish(self, now: float) -> None:
        """A worker has ended well: from here on the world only dissolves."""
        if self._finishing_at is None:
            limit = _ENDING_SECONDS_WHEN_DONE if self.completed.exists() else _ENDING_SECONDS
            self._finishing_at = now + limit

    # -- what follows ----------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._kill_all_at is not None:
            if self.advance_stop(now, now >= self._kill_all_at):
                self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED
        elif self._finishing_at is not None:
            if self.advance_finish(now >= self._finishing_at):
                self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_EXITED
        else:
            try:
                self.advance(now)
            except (OSError, ImportError) as error:
                self.fail(f"a worker can't be started: {error}")

    def _finish_releases(self, now: float) -> None:
        if self.releases.kill_due(now):
            self.killed_late(now)
        for release in self.releases.finished():
            release.done.set_result(self._state())

    # -- what others see -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        if self.fulfilled and not self.stopping:
            self.message = ""  # what went wrong has been mended
        state = self._state()
        if state != self._published:
            self._published = state
            self._publish(state)

    def _state(self) -> State:
        # Workers that end one after the other at the end of a training are no loss of hosts.
        confirmed = self._published.confirmed_hosts if self.finishing else self.confirmed_hosts()
        seen = Seen(self.course, tuple(confirmed), tuple(self.pids()), dict(self.failures()))
        return view(self.launch.job_id, seen, self.stopping, self._outcome, self.message)


def end_of(ended: Ended) -> None:
    """Note in the log that a worker has ended."""
    log.info("worker %d on %s ended with %d", ended.pid, ended.slot.host, ended.code)
