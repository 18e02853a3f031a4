"""Workers that stay while others join and leave: Elastic Horovod."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace

from malletrain.common.activity import Idleness, Wait, idleness_of_all
from malletrain.common.connections import cut
from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits
from malletrain.supervisor.elastic.backend import Backend
from malletrain.supervisor.elastic.hangs import ElasticHangs
from malletrain.supervisor.elastic.membership import (
    Membership,
    elastic_asked,
    elastic_failure,
    elastic_role,
    left_with_hosts,
    slots_of,
)
from malletrain.supervisor.workers.failure_watch import FailureWatch
from malletrain.supervisor.workers.promise import Promise
from malletrain.supervisor.workers.slot import Slot
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

_NOTICE_SECONDS = 0.5
_WARM_SECONDS = 30.0
_MESH_SECONDS = 0.5
"""How long the members of a new group take to connect. If one is lost in that time, Horovod aborts all."""
_LIVED_SECONDS = 10.0
"""A group of which nobody has registered for so long, though all live, is one of a script that is not elastic."""
_SILENT_SECONDS = 120.0
"""How long a change waits for such a script to register after all: it may read its data first."""
_LEAVE_SECONDS = 60.0

log = logging.getLogger(__name__)


class ElasticGroup(WorkerGroup):
    """The membership of a job, its workers and the backend they speak to, kept in step. See `WorkerGroup`.

    Attributes:
        membership: Which workers take part.
        trainers: The workers, those that are only warm included.
    """

    def __init__(
        self,
        pool: WorkerPool,
        backend: Backend,
        min_hosts: int = 1,
        limits: JobLimits = DEFAULT_LIMITS,
        restarts_left: int = 3,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        """
        Args:
            pool: Keeps the workers.
            min_hosts: Fewest hosts that a first group is formed of.
            limits: How long what the job does may take.
            restarts_left: How often the job may still be restarted after failures of its own.
            tell: Called with what the job's owner should know.
        """
        self._tell = tell
        self._told_silent = False
        self._limits = limits
        self.membership = Membership(min_hosts=min_hosts)
        self.trainers = pool
        self._backend = backend
        self._next_notice = 0.0
        self._formed_at = float("-inf")
        self._lineage: Mapping[str, str] = {}
        self._promise = Promise()
        self._leave_by = float("inf")
        self._hangs = ElasticHangs.with_limits(self._limits)
        self._watch = FailureWatch(pool.tails, restarts_left)

    @property
    def progress(self) -> Membership:
        """How far the newest command has been carried out."""
        return self.membership

    @property
    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""
        return self.trainers.failures

    def pids(self) -> list[tuple[Slot, int]]:
        """Slot and process id of each worker."""
        return self.trainers.pids()

    def idleness(self, now: float) -> Idleness | None:
        """Whether no process does anything."""
        return idleness_of_all(self.trainers.idleness(now))

    def on(self, hosts: Set[str]) -> list[Worker]:
        """The workers on hosts."""
        return self.trainers.on(hosts)

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, sequence: int, hosts: Mapping[str, int], now: float) -> None:
        """Use these hosts from now on; workers that are neither there nor members are killed."""
        self.membership = self.membership.command(sequence, hosts, now + _WARM_SECONDS)
        self._next_notice = 0.0
        self._end_unwanted()
        self._start_missing(now)

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Give up hosts; returns when what is left there is to be killed."""
        kill_at = max(now + grace, self._safe_to_kill_at(hosts))
        self.membership = self.membership.release(hosts)
        self._next_notice = 0.0
        self._end_unwanted()
        if self.membership.living and (self.membership.silent or not self.membership.has_heir):
            self._save_and_end(now, grace)
        return kill_at

    def _safe_to_kill_at(self, hosts: Iterable[str]) -> float:
        """From when on members on these hosts can be killed without harm to the others."""
        concerned = any(slot.host in hosts for slot in self.membership.members)
        return self._formed_at + _MESH_SECONDS if concerned else float("-inf")

    def _end_unwanted(self) -> None:
        hosts = set(self.membership.commanded) | {slot.host for slot in self.membership.members}
        self.trainers.kill(worker for worker in self.trainers if worker.slot.host not in hosts)

    def _save_and_end(self, now: float, grace: float = _LEAVE_SECONDS) -> None:
        """Have the state saved where no worker that has it stays. New workers, once warm, go on from the checkpoint."""
        self.membership = self.membership.closed()
        self._leave_by = now + _LEAVE_SECONDS
        for worker in self._workers(self.membership.living):
            worker.terminate(grace)

    def killed_late(self, now: float) -> None:
        """If the group is closing, kill the other members: they would wait for the killed ones in vain."""
        del now
        if self.membership.closing:
            self._kill_members()

    # -- what happens ----------------------------------------------------------------------------------------------

    def came_back(self, slot: Slot) -> None:
        """A worker waits for its rank in the next group."""
        if slot in self.membership.living:
            self.membership = self.membership.came_back(slot)
        else:
            self._backend.refuse(slot)

    def registered(self, slot: Slot) -> None:
        """A new worker takes part."""
        self.membership = self.membership.registered(slot)

    def reap(self) -> list[WorkerExit]:
        """Workers that have ended since the last call."""
        return self.trainers.reap()

    def see_end(self, ended: WorkerExit, facts: ExitFacts, now: float) -> Verdict | None:
        """Take in that a worker has ended; what this means for the job."""
        before = self.membership
        role = elastic_role(ended, before)
        meaning = ended.meaning(role, asked=elastic_asked(ended, before, facts))
        failed = meaning is ExitMeaning.FAILED
        stays = ended.slot.host in before.commanded and ended.slot.host not in facts.leaving
        seen = ended if stays else replace(ended, lost=True)
        if ended.going:
            rescued, newcomer = stays and ended.killed and not ended.hung, ended.slot in before.joining
            self._watch.note_end(seen, now, failed=failed or not stays, rescued=rescued, newcomer=newcomer)
        self._lose(ended, meaning, facts.over or ended.code == 0, now)
        if facts.over:
            return None
        if is_over(ended, role, meaning, facts):
            return finish(ended, len(before.members))
        if not failed:
            return None
        count = self.trainers.note_failure(ended.slot, now)
        verdict = elastic_failure(ended, self.membership, count)
        if verdict.consequence is Consequence.FAIL and ended.going and (settled := self._watch.settle(now)):
            return replace(verdict, message=settled.message)
        if ended.going:
            return replace(verdict, message=self._watch.so_far or verdict.message)
        return with_error(verdict, self.trainers.tails.error_text(ended.slot))

    def see_started(self) -> None:
        """Take in which workers wait for their start."""
        for slot in self.trainers.prepared():
            self.membership = self.membership.became_warm(slot)

    def _lose(self, ended: WorkerExit, meaning: ExitMeaning, others_end: bool, now: float) -> None:
        """Where a member has ended, free the others from waiting for it.

        Args:
            others_end: Whether they are about to end, too, rather than to go on.
            now: Monotonic seconds.
        """
        was_member = ended.slot in self.membership.living
        if was_member:
            self._hangs = self._hangs.lost(ended, self.membership, now)
        self._backend.refuse(ended.slot)
        self.membership = self.membership.ended(ended.slot, early=meaning is ExitMeaning.EARLY)
        if not was_member:
            return
        if held := self._backend.recall() & self.membership.living:
            log.info("group %d is given up before it has begun", self.membership.epoch)
            for slot in held:
                self.membership = self.membership.came_back(slot)
            self.trainers.kill(self._workers(self.membership.laggards))
        elif not others_end:
            self._cut()

    def _cut(self) -> None:
        workers = self._workers(self.membership.living)
        self.trainers.cut_remote(worker for worker in workers if not worker.here)
        try:
            count = cut(worker.pid for worker in workers if worker.here)
        except OSError as error:
            log.warning("survivors will notice at Gloo's time-out: connections can't be cut: %s", error)
        else:
            log.info("cut %d connections among %d survivors", count, len(workers))

    # -- what is done about it -------------------------------------------------------------------------------------

    def advance(self, now: float, leaving: frozenset[str]) -> bool:
        """Form the group that should be, or ask the members to come back for it; whether the training can go on."""
        self._see_lived(now)
        if self.membership.closing and now >= self._leave_by:
            self._kill_members()
        if not self._settle_loss(leaving, now):
            return False
        self._kill_hung(now)
        self._prepare(now)
        if self._places_hold(now):
            self._change(now)
        self._start_missing(now)
        return True

    def _see_lived(self, now: float) -> None:
        """Take a group for one that trains if it has lived for a while, and none of it shows that it is elastic."""
        if now >= self._formed_at + _LIVED_SECONDS:
            self.membership = self.membership.lived()
        late = now >= self._formed_at + _SILENT_SECONDS
        if late and self.membership.silent and len(self.membership.members) > 1 and not self._told_silent:
            self._told_silent = True
            self._tell(
                f"{len(self.membership.members)} workers have run for {_SILENT_SECONDS:g} s without hvd.elastic.run: "
                "they begin again at a change of scale, and without hvd.init() each may train a whole copy"
            )

    def _prepare(self, now: float) -> None:
        """Tell new workers their place in the next group. What their scripts do first does not keep others waiting."""
        waiting = self.trainers.warm()
        if not waiting or self.membership.closing or self.membership.winding_down:
            return
        basis = self.membership.hosts, tuple(self.membership.commanded.items())
        booted = self.membership.target_of(waiting, now)
        self._promise = self._promise.after_look(basis, booted, now)
        self.membership = self.membership.cooled(self.trainers.prepare(self._backend.places(self._promise.hosts)))

    def _places_hold(self, now: float) -> bool:
        """Whether the workers that would join now have been told the right places.

        They have not if others do not come. Then they are started anew, unless these others still get ready.
        """
        if self.membership.closing or not self.membership.warm:
            return True
        target = self.membership.target(now)
        places = self._backend.places(target)
        joining = [w for slot in places if slot in self.membership.warm and (w := self.trainers.get(slot)) is not None]
        if all(worker.place == places[worker.slot] for worker in joining):
            return True
        promised = [slot for host, count in self._promise.hosts for slot in slots_of(host, count)]
        if self._promise.is_patient(now) and not self.membership.ready and self.trainers.is_preparing(promised):
            return False
        self._promise = self._promise.narrowed(target, now)
        self._prepare(now)
        return True

    def _settle_loss(self, leaving: frozenset[str], now: float) -> bool:
        """If no worker can hand on the state, the job has failed, unless the state left with hosts that were taken.

        It has also failed if it goes on each time without the worker that its script has failed in, again and again.
        """
        if self.membership.winding_down:
            return True
        if not self.membership.lost:
            verdict = self._watch.settle(now, goes_on=True) if self.membership.can_form(now) else None
            return verdict is None or verdict.consequence is not Consequence.FAIL
        if self.membership.closing and self.membership.living:
            return True  # one of them may still save
        if not (self.membership.closing or left_with_hosts(self.membership, leaving)):
            self._watch.settle(now)
            return False
        log.info("the state has left with its hosts: a new group goes on from the checkpoint")
        self._kill_members()
        self.membership = self.membership.dissolved()
        return True

    def _kill_hung(self, now: float) -> None:
        """Kill workers that hang.

        The others then go on as after any other loss, and the worker is started again after a pause.
        """
        stopped = {worker.slot for worker in self.trainers if worker.is_stopped()}
        idle = self.idleness(now)
        # A member that works may evaluate, and one that sleeps comes back by itself.
        self._hangs = self._hangs.after_look(
            stopped, self.membership, now, idle=idle is not None and idle.wait < Wait.ASLEEP
        )
        for worker in self._workers(self._hangs.hung(self.membership, now)):
            if not worker.killed:
                log.warning("worker %d on %s is hung: killed", worker.pid, worker.slot.host)
                worker.hung = True
                worker.kill()

    def _change(self, now: float) -> None:
        if self._form_if_ready(now):
            return
        if not self.membership.change_due(now) or self.membership.joining:
            return
        if not self.membership.silent:
            self._notify(now)
        elif now >= self._formed_at + _SILENT_SECONDS:
            log.info("the script is not elastic: its workers save and end, and begin again at the new scale")
            self._save_and_end(now)

    def _notify(self, now: float) -> None:
        """Tell rank 0, again and again until the change has happened: a notice during a reset is lost."""
        if now < self._next_notice:
            return
        coordinator = next((slot for slot in self.membership.members if slot in self.membership.living), None)
        if coordinator is not None:
            self._backend.notify(coordinator, now)
            self._next_notice = now + _NOTICE_SECONDS

    def _form_if_ready(self, now: float) -> bool:
        """Form a new group once all living members have come back; whether it was formed."""
        if not self.membership.can_form(now):
            return False
        for slot in self.membership.early:
            self.trainers.note_failure(slot, now)  # it ended while the others want to train on
        self.membership, formation = self.membership.form(now)
        if len(formation.added) == len(self.membership.members):
            # Nobody is there who could hand on the model.
            self._lineage = lineage(formation.epoch, self._workers(self.membership.members))
        log.info("group %d: %s", formation.epoch, dict(formation.hosts))
        for slot, environment in self._backend.form(formation).items():
            if (worker := self.trainers.get(slot)) is not None:
                worker.go({**environment, **self._lineage})
        # They wait for a rank that they do not get; the survivors have the same state.
        self.trainers.kill(self._workers(formation.removed))
        self._formed_at = now
        self._hangs = self._hangs.formed()
        self._watch.begin_generation(len(formation.hosts), now)
        self._next_notice = now + _NOTICE_SECONDS
        return True

    def _start_missing(self, now: float) -> None:
        """Start workers in commanded slots that have none."""
        if self.membership.winding_down:
            return
        slots = (slot for host, count in self.membership.commanded.items() for slot in slots_of(host, count))
        self.trainers.start_missing(slots, now)

    # -- the end ---------------------------------------------------------------------------------------------------

    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end. Members that wait at the rendezvous get back to work, to end well."""
        self.membership = self.membership.closed()
        for worker in self.trainers:
            if worker.going and grace > 0:
                worker.terminate(grace)
            else:
                worker.kill()

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Continue a stop; whether no worker is left."""
        if kill:
            self.trainers.kill()
        elif self.trainers:
            self._form_if_ready(now)
        return not self.trainers

    def reset(self) -> None:
        """Forget what is commanded; the next group is formed of new workers."""
        self.trainers.sweep()
        self.membership = self.membership.dissolved().release(frozenset(self.membership.commanded))
        self._hangs = ElasticHangs.with_limits(self._limits)

    def advance_finish(self, late: bool) -> bool:
        """Have members end by themselves. Kill them if they are late, or if all wait for a new group in vain."""
        late = late or self.membership.stuck
        self.trainers.kill(worker for worker in self.trainers if late or not worker.going)
        return not any(worker.going for worker in self.trainers)

    def close(self) -> None:
        """Kill all processes that are left, and close the backend."""
        self.trainers.kill()
        self.trainers.sweep()
        self.trainers.reap()
        self._backend.close()

    def _kill_members(self) -> None:
        self.trainers.kill(self._workers(self.membership.living))
