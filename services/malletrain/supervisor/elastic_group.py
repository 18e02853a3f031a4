"""A job's world: its membership, its workers and the backend they speak to, kept in step.

Used from the supervisor's one thread of decisions.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Mapping

from malletrain.common.connections import cut
from malletrain.supervisor.backend import Backend
from malletrain.supervisor.membership import Membership, Slot, slots_of
from malletrain.supervisor.watchdog import Watchdog
from malletrain.supervisor.worker import Worker
from malletrain.supervisor.worker_exit import ExitMeaning, WorkerExit
from malletrain.supervisor.worker_pool import WorkerPool

_NOTICE_SECONDS = 0.5
_WARM_SECONDS = 30.0
_MESH_SECONDS = 0.5
"""What the members of a new world need to connect. Horovod aborts all of them where one is lost in that time."""
_STOPPED_SECONDS = 5.0
_LAGGING_SECONDS = 30.0
_DEAF_SECONDS = 3.0
"""Gloo can miss the end of a connection, and then waits for its time-out while the others have long come back."""
_BROKEN_SECONDS = 2.0
"""Nobody tells those who still connect to a member that has given up: Gloo waits five time-outs, then aborts."""

log = logging.getLogger(__name__)


class ElasticGroup:
    """What there is of a job, and how it becomes what is commanded.

    Attributes:
        membership: Who takes part.
    """

    def __init__(self, pool: WorkerPool, backend: Backend) -> None:
        """Begin with nobody."""
        self.membership = Membership()
        self._pool = pool
        self._backend = backend
        self._next_notice = 0.0
        self._formed_at = float("-inf")
        self._torn = False
        self._broken_at = float("inf")
        self._stopped: Watchdog[Slot] = Watchdog(_STOPPED_SECONDS)
        self._lagging: Watchdog[Slot] = Watchdog(_LAGGING_SECONDS)
        self._deaf: Watchdog[Slot] = Watchdog(_DEAF_SECONDS)

    def command(self, sequence: int, hosts: Mapping[str, int], now: float) -> None:
        """Take over a command; nobody waits for what is on other hosts and not in the world.

        Raises:
            OSError: a worker can't be started.
        """
        self.membership = self.membership.command(sequence, hosts, now + _WARM_SECONDS)
        self._next_notice = 0.0
        self._end_unwanted()
        self.start_missing(now)

    def release(self, hosts: frozenset[str]) -> None:
        """Take hosts out of what is commanded."""
        self.membership = self.membership.release(hosts)
        self._next_notice = 0.0
        self._end_unwanted()

    def _end_unwanted(self) -> None:
        kept = set(self.membership.commanded) | {slot.host for slot in self.membership.members}
        self._pool.kill(worker for worker in self._pool if worker.slot.host not in kept)

    def start_missing(self, now: float) -> None:
        """Start workers where they are commanded and lack.

        Raises:
            OSError: one can't be started.
        """
        if self.membership.winding_down:
            return
        slots = (slot for host, count in self.membership.commanded.items() for slot in slots_of(host, count))
        self._pool.start_missing(slots, now)

    def safe_to_kill_at(self, hosts: Iterable[str]) -> float:
        """From when on members on these hosts can be killed without harm to the others, in monotonic seconds."""
        concerned = any(slot.host in hosts for slot in self.membership.members)
        return self._formed_at + _MESH_SECONDS if concerned else float("-inf")

    # -- what happens ----------------------------------------------------------------------------------------------

    def came_back(self, slot: Slot) -> None:
        """A worker waits for its place in the next world."""
        if slot in self.membership.living:
            self.membership = self.membership.came_back(slot)
        else:
            self._backend.refuse(slot)

    def registered(self, slot: Slot) -> None:
        """A newcomer takes part."""
        self.membership = self.membership.registered(slot)

    def see_warm(self) -> None:
        """Take over which workers wait for their start."""
        for slot in self._pool.warm():
            self.membership = self.membership.became_warm(slot)

    def lose(self, ended: WorkerExit, meaning: ExitMeaning, others_end: bool, now: float) -> None:
        """A worker has ended: where it was a member, the others are freed from waiting for it.

        Args:
            ended: The worker.
            meaning: What its end means.
            others_end: Whether they are about to end, too, rather than to go on.
            now: Monotonic seconds.
        """
        was_member = ended.slot in self.membership.living
        if was_member:
            self._see_break(ended, now)
        self._backend.refuse(ended.slot)
        self.membership = self.membership.ended(ended.slot, early=meaning is ExitMeaning.EARLY)
        if not was_member:
            return
        if held := self._backend.recall() & self.membership.living:
            log.info("world %d is given up before it has begun", self.membership.epoch)
            for slot in held:
                self.membership = self.membership.came_back(slot)
            self._pool.kill(self._workers(self.membership.laggards))
        elif not others_end:
            self._cut()

    def _see_break(self, ended: WorkerExit, now: float) -> None:
        """A world that loses a member while it connects may have others give up in turn: it never comes to be."""
        if self._torn and ended.code == -signal.SIGABRT and not ended.killed:
            self._broken_at = min(self._broken_at, now)
        self._torn = self._torn or bool(self.membership.joining)

    def _cut(self) -> None:
        workers = self._workers(self.membership.living)
        self._pool.cut_remote(worker for worker in workers if not worker.here)
        try:
            count = cut(worker.pid for worker in workers if worker.here)
        except OSError as error:
            log.warning("survivors will notice at Gloo's time-out: connections can't be cut: %s", error)
        else:
            log.info("cut %d connections among %d survivors", count, len(workers))

    # -- what is done about it -------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Form the world that should be, or ask the members to come back for it."""
        if self.form_if_ready(now):
            return
        if self.membership.change_due(now) and not self.membership.joining and now >= self._next_notice:
            self._notify(now)

    def _notify(self, now: float) -> None:
        """Tell rank 0; again until the change has happened, since a notice that meets a reset is lost."""
        coordinator = next((slot for slot in self.membership.members if slot in self.membership.living), None)
        if coordinator is not None:
            self._backend.notify(coordinator, now)
            self._next_notice = now + _NOTICE_SECONDS

    def form_if_ready(self, now: float) -> bool:
        """Form a new world once all who live have come back; whether it was."""
        if not self.membership.can_form(now):
            return False
        for slot in self.membership.early:
            self._pool.note_failure(slot, now)  # it ended while the others want to train on
        self.membership, formation = self.membership.form(now)
        log.info("world %d: %s", formation.epoch, dict(formation.hosts))
        for slot, environment in self._backend.form(formation).items():
            if (worker := self._pool.get(slot)) is not None:
                worker.go(environment)
        # They wait for a place that they do not get; their state lives on in the survivors.
        self._pool.kill(self._workers(formation.removed))
        self._formed_at = now
        self._torn, self._broken_at = False, float("inf")
        self._next_notice = now + _NOTICE_SECONDS
        return True

    def kill_hung(self, now: float) -> None:
        """Kill workers that have been stopped for long, or keep those waiting who have come back for a new world.

        The others then go on as after any other loss, and the worker is started again after a pause.
        """
        self._stopped = self._stopped.seen({worker.slot for worker in self._pool if worker.is_stopped()}, now)
        laggards = self.membership.laggards
        self._lagging = self._lagging.seen(laggards, now)
        # Where the world closes, who has not come back may be saving what all have done.
        after_loss = bool(self.membership.dead) and not self.membership.closing
        self._deaf = self._deaf.seen(laggards if after_loss else frozenset(), now)
        hung = self._stopped.overdue(now) | self._lagging.overdue(now) | self._deaf.overdue(now)
        if now >= self._broken_at + _BROKEN_SECONDS:
            hung |= self.membership.living - self.membership.ready
        for worker in self._workers(hung):
            if not worker.killed:
                log.warning("worker %d on %s is hung: killed", worker.pid, worker.slot.host)
                worker.hung = True
                worker.kill()

    def save_and_end(self) -> None:
        """Nobody with the state stays: have it saved; newcomers, perhaps still booting, go on from the checkpoint."""
        self.membership = self.membership.closed()
        for worker in self._workers(self.membership.living):
            worker.terminate()

    def close(self) -> None:
        """Have the members that wait get back to work, to end well; nobody joins them."""
        self.membership = self.membership.closed()

    def dissolve(self) -> None:
        """Kill the members that are left; the next world is one of newcomers."""
        self.kill_members()
        self.membership = self.membership.dissolved()

    def kill_members(self) -> None:
        """Kill all members."""
        self._pool.kill(self._workers(self.membership.living))

    def _workers(self, slots: Iterable[Slot]) -> list[Worker]:
        return [worker for slot in slots if (worker := self._pool.get(slot)) is not None]
