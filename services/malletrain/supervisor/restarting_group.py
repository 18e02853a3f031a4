"""A job whose workers are restarted at every change: its generation, its processes and its backend, kept in step.

Used from the supervisor's one thread of decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

from malletrain.supervisor.generation_state import GenerationState
from malletrain.supervisor.membership import Slot, slots_of
from malletrain.supervisor.restarting import RestartingBackend
from malletrain.supervisor.watchdog import Watchdog
from malletrain.supervisor.worker import Worker
from malletrain.supervisor.worker_exit import ExitMeaning, WorkerExit
from malletrain.supervisor.worker_pool import WorkerPool

_WARM_SECONDS = 30.0
_REPLACE_SECONDS = 2.0
"""How long the next generation waits for slots that do not stand by, once nobody trains any more: not for a boot."""
_LEAVE_SECONDS = 60.0
_SAVE_SECONDS = 300.0
_LOSS_SECONDS = 2.0
"""How long a survivor of a loss has until it shows that it saves."""
_STANDBY_PAUSE_SECONDS = 2.0
"""Standing by costs a boot: not in the moment in which a generation begins to train."""
_STOPPED_SECONDS = 5.0

log = logging.getLogger(__name__)


class RestartingGroup:
    """What there is of a job, and how it becomes what is commanded.

    Attributes:
        generation: Who trains.
        members: Processes of the present generation.
        standby: Processes of the next one.
        formed_at: When the present generation began, in monotonic seconds.
    """

    def __init__(self, members: WorkerPool, standby: WorkerPool, backend: RestartingBackend, saving: Path) -> None:
        """Begin with nobody.

        Args:
            members: Keeps the processes of the present generation.
            standby: Keeps those of the next one.
            backend: Says which processes there are, and what they need to know.
            saving: Folder in which a member that saves shows itself, by a file with its process id as its name.
        """
        self.generation = GenerationState()
        self.members = members
        self.standby = standby
        self._backend = backend
        self._saving = saving
        self.formed_at = float("-inf")
        self._stopped: Watchdog[int] = Watchdog(_STOPPED_SECONDS)

    # -- what is commanded -----------------------------------------------------------------------------------------

    def command(self, sequence: int, hosts: Mapping[str, int], now: float) -> None:
        """Take over a command."""
        self.generation = self.generation.command(sequence, hosts, now + _WARM_SECONDS)

    def release(self, hosts: Set[str], grace: float, now: float) -> None:
        """Take hosts out of what is commanded; if the present generation uses them, it leaves."""
        self.generation = self.generation.release(hosts)
        self.standby.kill(self.standby.on(hosts))
        concerned = self._workers(self._backend.occupies(self.generation.world, hosts))
        if concerned and grace > 0:
            self._leave(now)
        # Without grace they are killed at once, as a loss to those that are left.

    def _leave(self, now: float) -> None:
        """Ask all members to save and leave."""
        if not self.generation.leaving:
            self.generation = self.generation.leave(now + _LEAVE_SECONDS)
            for worker in self._workers(self.generation.living):
                worker.terminate()

    def on(self, hosts: Set[str]) -> list[Worker]:
        """Processes that use hosts."""
        return [*self._workers(self._backend.occupies(self.generation.world, hosts)), *self.standby.on(hosts)]

    def kill(self, workers: Iterable[Worker]) -> None:
        """Kill workers."""
        self.members.kill(workers)

    def hurry(self, now: float) -> None:
        """Members have been killed before they had left: those that are left may not wait for them."""
        if self.generation.leaving and any(worker.killed for worker in self.members):
            self._rescue(now)

    def sweep(self, hosts: frozenset[str]) -> None:
        """Kill what bears the job's mark on hosts, until nothing is left."""
        self.members.sweep(hosts)

    # -- what happens ----------------------------------------------------------------------------------------------

    def see_started(self) -> None:
        """Take over in which members the job's own code runs."""
        for worker in self.members:
            worker.is_warm()
            if worker.started or not self._backend.warm:
                self.generation = self.generation.start(worker.slot)

    def lose(self, ended: WorkerExit, meaning: ExitMeaning, now: float, others_end: bool) -> None:
        """A member has ended; where it was not to, or saved nothing, another one is asked to save what all have.

        Args:
            ended: The member.
            meaning: What its end means.
            now: Monotonic seconds.
            others_end: Whether the others are about to end, too, rather than to wait for it.
        """
        first = self.generation.members[:1] == (ended.slot,)
        leaving = self.generation.leaving
        early = meaning is ExitMeaning.EARLY
        self.generation = self.generation.ended(ended.slot, now + _REPLACE_SECONDS, early=early)
        if not others_end and (not leaving or first):
            self._rescue(now)

    def _rescue(self, now: float) -> None:
        """Have one survivor save; the others have the same state, and can go."""
        survivors = [
            worker for worker in self._workers(self.generation.living) if not worker.killed and worker.poll() is None
        ]
        self.generation = self.generation.leave(now + _LOSS_SECONDS)
        for worker in survivors[1:]:
            worker.kill()
        if survivors:
            log.info("%s is asked to save", survivors[0].slot)
            survivors[0].terminate()

    # -- what is done about it -------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Have the present generation leave, or form the next one.

        Raises:
            OSError: a worker or its world can't be started.
            ImportError: the backend can't work here.
        """
        self._kill_hung(now)
        if self.generation.overdue(now) and not self._extend(now):
            log.warning("members that have not left in time are killed")
            self.members.kill()
        ready = self._ready()
        if self.generation.change_due(ready, now):
            self._leave(now)
        if self._backend.is_ready() and self.generation.can_form(ready, now):
            self._form(ready, now)
        self._stand_by(ready, now)

    def _stand_by(self, ready: Set[Slot], now: float) -> None:
        """Keep a process for every slot of the next generation, and no other."""
        hosts = self.generation.target(ready, now), tuple(self.generation.commanded.items())
        wanted = {slot: None for entries in hosts for slot in self._backend.slots(entries)}
        self.standby.kill(worker for worker in self.standby if worker.slot not in wanted)
        if not self.generation.fulfilled or now >= self.formed_at + _STANDBY_PAUSE_SECONDS:
            self.standby.start_missing(wanted, now)

    def _ready(self) -> frozenset[Slot]:
        """Slots that need no process, or whose next process stands by."""
        commanded = tuple(self.generation.commanded.items())
        every = {slot for entry in commanded for slot in slots_of(*entry)}
        return frozenset(every - set(self._backend.slots(commanded)) | set(self.standby.warm()))

    def _form(self, ready: Set[Slot], now: float) -> None:
        slots = self._backend.slots(self.generation.target(ready, now))
        if not set(slots) <= set(self.standby.warm()):
            return
        self.generation = self.generation.form(ready, slots, now)
        log.info("generation %d: %s", self.generation.epoch, dict(self.generation.world))
        environments = self._backend.form(self.generation.epoch, self.generation.world)
        for slot in slots:
            worker = self.standby.give_away(slot)
            self.members.adopt(worker)
            worker.go(environments[slot])
        self.formed_at = now

    def _extend(self, now: float) -> bool:
        """Whether a member shows that it saves, and was not given more time before."""
        if self.generation.extended or not any((self._saving / str(worker.pid)).exists() for worker in self.members):
            return False
        self.generation = self.generation.extend(now + _SAVE_SECONDS)
        return True

    def _kill_hung(self, now: float) -> None:
        """Kill workers that have been stopped for long; the others then go on as after any other loss."""
        stopped = {
            worker.pid: worker for pool in (self.members, self.standby) for worker in pool if worker.is_stopped()
        }
        self._stopped = self._stopped.seen(stopped.keys(), now)
        for worker in (stopped[pid] for pid in self._stopped.overdue(now)):
            if not worker.killed:
                log.warning("worker %d on %s is hung: killed", worker.pid, worker.slot.host)
                worker.hung = True
                worker.kill()

    def _workers(self, slots: Iterable[Slot]) -> list[Worker]:
        return [worker for slot in slots if (worker := self.members.get(slot)) is not None]
