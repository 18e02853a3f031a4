"""Workers that are all restarted at every change: torchrun, and programs that we know nothing of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path

from malletrain.common.activity import Idleness, idleness_of_all
from malletrain.common.handover_memory import LeaveNotice, write_leave_notice
from malletrain.common.job_folder import STAGE_OUT_FOLDER
from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits
from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.restarting.awaited_checkpoints import AwaitedCheckpoints
from malletrain.supervisor.restarting.backend import RestartingBackend
from malletrain.supervisor.restarting.generation_state import (
    GenerationState,
    member_asked,
    member_role,
    next_asked,
    next_failure,
    next_role,
)
from malletrain.supervisor.workers.failure_watch import FailureWatch
from malletrain.supervisor.workers.promise import Hosts, Promise
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.watchdog import Watchdog
from malletrain.supervisor.workers.worker import Worker, lineage
from malletrain.supervisor.workers.worker_exit import (
    Consequence,
    ExitFacts,
    ExitMeaning,
    Verdict,
    WorkerExit,
    finish,
    is_over,
    with_error,
)
from malletrain.supervisor.workers.worker_group import WorkerGroup
from malletrain.supervisor.workers.worker_pool import WorkerPool

_WARM_SECONDS = 30.0
_REPLACE_SECONDS = 2.0
"""How long a new generation waits for workers that are not warm when no other one trains. A boot takes longer."""
_LOSS_SECONDS = 2.0
"""How long a survivor of a loss has until it shows that it saves."""
_NEXT_PAUSE_SECONDS = 2.0
"""When the next generation's workers are started after a change: their boot would slow the first batches."""
_STOPPED_SECONDS = 5.0
_APART_SECONDS = 120.0
"""After so long, members that have not begun to connect probably never will."""

log = logging.getLogger(__name__)


class RestartingGroup(WorkerGroup):
    """The generations of a job, their processes and their backend, kept in step. See `WorkerGroup`.

    Attributes:
        trainers: Processes of the present generation.
    """

    def __init__(
        self,
        trainers: WorkerPool,
        following: WorkerPool,
        backend: RestartingBackend,
        saving: Path,
        sharded: Path,
        min_hosts: int = 1,
        hosts_per_replica: int = 1,
        fixed_replicas: bool = False,
        limits: JobLimits = DEFAULT_LIMITS,
        restarts_left: int = 3,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        """
        Args:
            saving: Folder in which a member that is saving has a file, named by its process id.
            sharded: Folder in which a member with a part of the state that others do not have has such a file.
            min_hosts: Fewest hosts that a generation begins with.
            hosts_per_replica: Hosts that one copy of the model is divided among.
            fixed_replicas: Whether only hosts that follow each other in a command may make a replica.
            limits: How long leaving and saving may take.
            restarts_left: How often the job may still be restarted after failures of its own.
            tell: Called with what the job's owner should know.
        """
        self._tell = tell
        self._told_apart = False
        self._limits = limits
        self.trainers = trainers
        self._generation = GenerationState(
            min_hosts=min_hosts, hosts_per_replica=hosts_per_replica, fixed_replicas=fixed_replicas
        )
        self._next = following
        self._backend = backend
        self._saving = saving
        self._sharded = sharded
        self._notice: LeaveNotice | None = None
        self._awaited = AwaitedCheckpoints(saving.parent / STAGE_OUT_FOLDER)
        self._awaits_until: float | None = None
        self._released_by: dict[str, float] = {}  # when what is left on hosts that are given back is killed
        self._formed_at = float("-inf")
        self._promise = Promise()
        self._watch = FailureWatch(trainers.tails, restarts_left)
        self._rescued: set[Slot] = set()
        self._stopped: Watchdog[int] = Watchdog(_STOPPED_SECONDS)

    @property
    def progress(self) -> GenerationState:
        """How far the newest command has been carried out."""
        return self._generation

    @property
    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""
        return self._next.failures

    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Processes of the present generation, and of the next where there is none."""
        return {**dict(self._next.pids()), **dict(self.trainers.pids())}.items()

    def idleness(self, now: float) -> Idleness | None:
        """Whether no process does anything. Those that wait for the next generation do nothing by nature."""
        return idleness_of_all([*self.trainers.idleness(now), *self._next.idleness(now)])

    def on(self, hosts: Set[str]) -> list[Worker]:
        """The workers that use hosts."""
        return [*self._workers(self._backend.occupies(self._generation.hosts, hosts)), *self._next.on(hosts)]

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, sequence: int, hosts: Mapping[str, int], now: float) -> None:
        """Use these hosts from now on."""
        self._generation = self._generation.command(sequence, hosts, now + _WARM_SECONDS)

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Give up hosts; a generation that uses them leaves. Returns when what is left there is to be killed."""
        self._generation = self._generation.release(hosts)
        self._next.kill(self._next.on(hosts))
        concerned = self._workers(self._backend.occupies(self._generation.hosts, hosts))
        self._released_by |= dict.fromkeys(hosts, now + grace)
        if self._generation.leaving:
            self._write_notice(self._succeeded(), self._seconds_left(now))
        if concerned and grace > 0:
            self._leave(now, grace)
        # Without grace they are killed at once, as a loss to those that are left.
        return now + grace

    def _leave(self, now: float, grace: float) -> None:
        """Ask all members to save and leave."""
        if not self._generation.leaving:
            self._generation = self._generation.leave(now + self._limits.leave_grace)
            self._write_notice(self._succeeded(), self._seconds_left(now))
            for worker in self._workers(self._generation.living):
                worker.terminate(grace)

    def _succeeded(self) -> frozenset[str]:
        """Hosts of the present generation on which others come after it for certain: they have booted, and wait."""
        warm = set(self._next.warm())
        present = {host for host, _ in self._generation.hosts}
        commanded = (entry for entry in self._generation.commanded.items() if entry[0] in present)
        return frozenset(entry[0] for entry in commanded if warm.issuperset(slots_of(*entry)))

    def _seconds_left(self, now: float) -> dict[str, float]:
        """How long workers still have on hosts that are given back."""
        return {host: max(0.0, by - now) for host, by in self._released_by.items()}

    def _write_notice(self, staying: frozenset[str], released: Mapping[str, float]) -> None:
        """Write down where those that leave can hand their state to others, and how long they have elsewhere."""
        if not self._backend.hands_over:
            return
        notice = LeaveNotice(self._generation.epoch, staying, released)
        if notice != self._notice:
            write_leave_notice(self._saving.parent, notice)
            self._notice = notice

    def killed_late(self, now: float) -> None:
        """Have a survivor save at once: members that leave together would wait for the killed ones."""
        if self._generation.leaving and any(worker.killed for worker in self.trainers):
            self._rescue(now)

    # -- what happens ----------------------------------------------------------------------------------------------

    def reap(self) -> list[WorkerExit]:
        """Workers that have ended since the last call, those of the next generation first."""
        return [*self._next.reap(), *self.trainers.reap()]

    def see_end(self, ended: WorkerExit, facts: ExitFacts, now: float) -> Verdict | None:
        """Take in that a worker has ended; what this means for the job."""
        # Only members have been told to go.
        return self._see_member_end(ended, facts, now) if ended.going else self._see_next_end(ended, facts, now)

    def _see_next_end(self, ended: WorkerExit, facts: ExitFacts, now: float) -> Verdict | None:
        role = next_role(ended, self._generation)
        meaning = ended.meaning(role, asked=next_asked(ended, facts))
        if facts.over:
            return None
        if meaning is ExitMeaning.DONE:
            return finish(ended, 1)
        if meaning is not ExitMeaning.FAILED:
            return None
        count = self._next.note_failure(ended.slot, now)
        verdict = next_failure(ended, self._generation, count)
        return with_error(verdict, self._next.tails.error_text(ended.slot))

    def _see_member_end(self, ended: WorkerExit, facts: ExitFacts, now: float) -> Verdict | None:
        before = self._generation
        role = member_role(ended, before)
        meaning = ended.meaning(role, asked=member_asked(ended, before, facts))
        failed = meaning is ExitMeaning.FAILED
        seen = replace(ended, lost=True) if ended.slot.host in facts.leaving else ended
        self._watch.note_end(seen, now, failed=failed, rescued=ended.slot in self._rescued)
        self._lose(ended, meaning, now, others_end=facts.over or ended.code == 0)
        if facts.over:
            return None
        if is_over(ended, role, meaning, facts):
            return finish(ended, len(before.members))
        if not self._generation.members:
            return self._settle(now)
        return Verdict(Consequence.NOTE, self._watch.so_far) if self._watch.open else None

    def _settle(self, now: float) -> Verdict | None:
        """All members have ended: whose fault it was, if any failed. Their checkpoint is as new as it can be."""
        verdict = self._watch.settle(now)
        if verdict is not None and (failure := self._watch.newest) is not None:
            self._next.note_failure(failure.slot, now)
        return verdict

    def see_started(self) -> None:
        """Take in which members run the job's own code."""
        for worker in self.trainers:
            worker.is_warm()
            if worker.started or not self._backend.warm:
                self._generation = self._generation.start(worker.slot)

    def _lose(self, ended: WorkerExit, meaning: ExitMeaning, now: float, others_end: bool) -> None:
        """Take in the end of a member. If it was not to end, or was rank 0 and should have saved, have a survivor save.

        Args:
            now: Monotonic seconds.
            others_end: Whether the others are about to end, too, rather than to wait for it.
        """
        first = self._generation.members[:1] == (ended.slot,)
        leaving = self._generation.leaving
        early = meaning is ExitMeaning.EARLY
        self._generation = self._generation.ended(ended.slot, now + _REPLACE_SECONDS, early=early)
        if not others_end and (not leaving or first):
            self._rescue(now)

    def _rescue(self, now: float) -> None:
        """Have one survivor save, and kill the others that have the same state."""
        self._write_notice(frozenset(), self._seconds_left(now))
        survivors = [
            worker for worker in self._workers(self._generation.living) if not worker.killed and worker.poll() is None
        ]
        self._generation = self._generation.leave(now + _LOSS_SECONDS)
        for number, worker in enumerate(survivors):
            self._rescued.add(worker.slot)
            if number == 0 or (self._sharded / str(worker.pid)).exists():
                log.info("%s is asked to save", worker.slot)
                worker.terminate(self._limits.save)
            else:
                worker.kill()

    # -- what is done about it -------------------------------------------------------------------------------------

    def advance(self, now: float, leaving: frozenset[str]) -> bool:
        """Have the present generation leave, or form the next one, which can always go on from the checkpoint."""
        del leaving
        self._kill_hung(now)
        self._tell_if_apart(now)
        if self._generation.overdue(now) and not self._extend(now):
            log.warning("members that have not left in time are killed")
            self.trainers.kill()
        ready = self._ready(now)
        if self._generation.change_due(ready, now):
            self._leave(now, self._limits.leave_grace)
        if self._backend.is_ready() and self._generation.can_form(ready, now) and not self._awaits_checkpoint(now):
            self._form(ready, now)
        self._keep_next(ready, now)
        return True

    def _awaits_checkpoint(self, now: float) -> bool:
        """Whether agents still copy a checkpoint, from which the next generation is to go on."""
        left = self._awaited.seconds_left(now)
        if left and self._awaits_until is None:
            self._tell(f"the checkpoint is still copied from nodes that were given back: waits {left:.0f} s at most")
        elif not left and self._awaits_until is not None and now >= self._awaits_until:
            self._tell("the checkpoint was not copied in time: the last complete one counts")
        self._awaits_until = now + left if left else None
        return left > 0

    def _tell_if_apart(self, now: float) -> None:
        """Say once if members that train do not look for each other: each trains a model of its own."""
        several = self._generation.complete and len(self._generation.members) > 1
        if self._told_apart or not several or now < self._formed_at + _APART_SECONDS or self._backend.has_met():
            return
        self._told_apart = True
        self._tell(
            f"{len(self._generation.members)} workers have run for {_APART_SECONDS:g} s, and none has looked for the "
            "others: each may train a whole copy. A script that is one process runs with --backend command"
        )

    def _keep_next(self, ready: Set[Slot], now: float) -> None:
        """Keep one process for every slot of the next generation, and no other process."""
        hosts = self._generation.target(ready, now), tuple(self._generation.commanded.items())
        wanted = {slot: None for entries in hosts for slot in self._backend.slots(entries)}
        self._next.kill(worker for worker in self._next if worker.slot not in wanted)
        if not self._generation.fulfilled or now >= self._formed_at + _NEXT_PAUSE_SECONDS:
            self._next.start_missing(wanted, now)

    def _ready(self, now: float) -> frozenset[Slot]:
        """Slots that need no process, or whose next process is ready for the next generation."""
        commanded = tuple(self._generation.commanded.items())
        every = {slot for entry in commanded for slot in slots_of(*entry)}
        idle = frozenset(every - set(self._backend.slots(commanded)))
        if not (self._generation.waits_for_more and self._backend.is_ready()):
            return idle | (self._informed_slots(commanded) or set(self._next.warm()))
        booted = idle | set(self._next.warm())
        basis = self._generation.hosts, commanded
        self._promise = self._promise.after_look(basis, self._generation.due(booted, now), now)
        if not self._promise.hosts:
            return booted
        places = self._backend.places(self._generation.epoch + 1, self._promise.hosts)
        if not places:
            return booted
        self._next.prepare(places)
        ready = idle | set(self._next.prepared())
        fewer = self._generation.due(ready, now)
        if not fewer or fewer == self._promise.hosts:
            return ready
        # The others do not come: those that are prepared are started anew for a smaller generation.
        if not (self._promise.is_patient(now) and self._next.is_preparing(places)):
            self._promise = self._promise.narrowed(fewer, now)
        return idle

    def _informed_slots(self, commanded: Hosts) -> set[Slot]:
        """Slots of the next generation as its workers were told of it, if all of them wait for it.

        The one before has left for it. Others that have booted since come at the next change: with them those that are
        ready would have to boot again while nobody trains.
        """
        hosts, trains = self._promise.hosts, self._generation.living and not self._generation.leaving
        if trains or not hosts or self._promise.basis[1] != commanded or not self._backend.is_ready():
            return set()
        places = self._backend.places(self._generation.epoch + 1, hosts)
        waiting = {slot: self._next.get(slot) for slot in self._next.warm() if slot in places}
        informed = {slot for slot, worker in waiting.items() if worker is not None and worker.place == places[slot]}
        return informed if informed == set(places) else set()

    def _form(self, ready: Set[Slot], now: float) -> None:
        slots = self._backend.slots(self._generation.target(ready, now))
        if not set(slots) <= set(self._next.warm()):
            return
        hosts = self._generation.target(ready, now)
        if self._next.kill_misplaced(self._backend.places(self._generation.epoch + 1, hosts)):
            return  # they were told other places; others are started for them
        self._generation = self._generation.form(ready, slots, now)
        log.info("generation %d: %s", self._generation.epoch, dict(self._generation.hosts))
        environments = self._backend.form(self._generation.epoch, self._generation.hosts)
        workers = {slot: self._next.give_away(slot) for slot in slots}
        # Each generation begins with what the one before has saved.
        own = lineage(self._generation.epoch, workers.values())
        for slot, worker in workers.items():
            self.trainers.adopt(worker)
            worker.go({**environments[slot], **own})
        self._formed_at = now
        self._rescued.clear()
        self._released_by.clear()
        self._watch.begin_generation(len(self._generation.hosts), now)

    def _extend(self, now: float) -> bool:
        """Give the members more time, once, if one shows that it is saving; whether they got it."""
        if self._generation.extended or not any((self._saving / str(worker.pid)).exists() for worker in self.trainers):
            return False
        self._generation = self._generation.extend(now + self._limits.save)
        return True

    def _kill_hung(self, now: float) -> None:
        """Kill workers that have been stopped for long; the others then go on as after any other loss."""
        stopped = {worker.pid: worker for pool in (self.trainers, self._next) for worker in pool if worker.is_stopped()}
        self._stopped = self._stopped.after_look(stopped.keys(), now)
        for worker in (stopped[pid] for pid in self._stopped.overdue(now)):
            if not worker.killed:
                log.warning("worker %d on %s is hung: killed", worker.pid, worker.slot.host)
                worker.hung = True
                worker.kill()

    # -- the end ---------------------------------------------------------------------------------------------------

    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end."""
        self._next.kill()
        self._write_notice(frozenset(), {host: grace for host, _ in self._generation.hosts})
        for worker in self.trainers:
            if grace > 0:
                worker.terminate(grace)
            else:
                worker.kill()

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Continue a stop; whether no worker is left."""
        del now
        if kill:
            self.trainers.kill()
        return not (self.trainers or self._next)

    def reset(self) -> None:
        """Forget what is commanded; the next generation is formed of new workers."""
        self.trainers.sweep()
        self._generation = self._generation.release(self._generation.commanded.keys())

    def advance_finish(self, late: bool) -> bool:
        """Have members end by themselves; kill them if they are late."""
        self._next.kill()
        if late:
            self.trainers.kill()
        return not self.trainers

    def close(self) -> None:
        """Kill all processes that are left, and close the backend."""
        for pool in (self._next, self.trainers):
            pool.kill()
        self.trainers.sweep()
        for pool in (self._next, self.trainers):
            pool.reap()
        self._backend.close()
