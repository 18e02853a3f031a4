"""A job whose workers change their scale while they run: Elastic Horovod."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from malletrain.common.worker_process import warm_command
from malletrain.supervisor.backend import OpenBackend
from malletrain.supervisor.elastic_group import ElasticGroup
from malletrain.supervisor.event_loop import Context, EventLoop, end_of, how_it_ended
from malletrain.supervisor.membership import Membership, Slot
from malletrain.supervisor.worker_exit import ExitMeaning, Role, WorkerExit

_TRIES_TO_WARM = 3

log = logging.getLogger(__name__)


class ElasticEventLoop(EventLoop):
    """Owns the membership and the pool of one job."""

    def __init__(self, context: Context, open_backend: OpenBackend) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what there is to drive it by.
            open_backend: Starts what the workers find each other by.
        """
        self._backend = open_backend(
            lambda slot: self.later(lambda: self._group.came_back(slot)),
            lambda slot: self.later(lambda: self._group.registered(slot)),
        )
        defaults = self._backend.defaults(warm=warm_command(context.launch.command) is not None)
        self._pool = context.pool(defaults)
        self._group = ElasticGroup(self._pool, self._backend)
        super().__init__(context, self._pool, self._pool)

    @property
    def progress(self) -> Membership:
        """How far it is."""
        return self._group.membership

    @property
    def fulfilled(self) -> bool:
        """Whether it is what is commanded."""
        return self._group.membership.fulfilled

    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts on which it trains."""
        return self._group.membership.confirmed_hosts

    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""
        return self._pool.failures

    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Its processes."""
        return self._pool.pids()

    def command(self, sequence: int, hosts: dict[str, int], now: float) -> None:
        """Take over a command; see `EventLoop`."""
        self._group.command(sequence, hosts, now)

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Take hosts out of the world; see `EventLoop`."""
        kill_at = max(now + grace, self._group.safe_to_kill_at(hosts))
        self._group.release(hosts)
        if self._group.membership.living and not self._group.membership.has_heir:
            self._group.save_and_end()
        return kill_at

    def killed_late(self, now: float) -> None:
        """Where the world closes, those that are left wait for the killed in vain."""
        del now
        if self._group.membership.closing:
            self._group.kill_members()

    # -- workers' ends ---------------------------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """See which workers have ended, and which are warm."""
        for ended in self._pool.reap():
            self._see_end(ended, now)
        self._group.see_warm()

    def _see_end(self, ended: WorkerExit, now: float) -> None:
        before = self._group.membership
        end_of(ended)
        role = self._role(ended, before)
        meaning = ended.meaning(role, asked=self._asked(ended, before))
        over = self.stopping or self.finishing
        self._group.lose(ended, meaning, over or ended.code == 0, now)
        if over:
            return
        said = ended.code == 0 and role is not Role.NEWCOMER and self.completed.exists()
        if said or meaning is ExitMeaning.DONE:
            self.begin_finish(how_it_ended(ended, len(before.members)), now)
        elif meaning is ExitMeaning.FAILED:
            self._note_failure(ended, now)

    @staticmethod
    def _role(ended: WorkerExit, membership: Membership) -> Role:
        if ended.slot in membership.living:
            return Role.RANK_ZERO if ended.slot == membership.members[0] else Role.MEMBER
        # A script that ends before it looks for the others has no rank, and needs none.
        return Role.RANK_ZERO if ended.started and not membership.world else Role.NEWCOMER

    def _asked(self, ended: WorkerExit, membership: Membership) -> bool:
        """Whether a worker had been asked to leave.

        A rescale in which its node stays asks it to come back to the rendezvous, not to leave. A batch system that
        takes a node back may signal the workers there itself, and scripts often agree to stop together.
        """
        if self.asked_to_stop(ended) or membership.closing or ended.slot.host not in membership.commanded:
            return True
        hosts = {ended.slot.host, *(host for host, _ in membership.world)}
        return ended.code == 0 and bool(hosts & self.agents.leaving)

    def _note_failure(self, ended: WorkerExit, now: float) -> None:
        self.message = ended.how
        count = self._pool.note_failure(ended.slot, now)
        if self._group.membership.world or self.finishing:
            return  # the others go on, or `_settle_loss` decides
        if ended.started or ended.going:
            self.fail(ended.how)
        elif count > _TRIES_TO_WARM:
            self.fail(f"{ended.how} before it was warm, {count} times")

    def _settle_loss(self) -> None:
        """Where nobody is left who could hand on the state, the job has failed, unless it left with hosts we took."""
        membership = self._group.membership
        if not membership.lost or membership.winding_down or self.finishing:
            return
        if any(host not in membership.commanded or host in self.agents.leaving for host, _ in membership.world):
            log.info("the state has left with its hosts: a new world goes on from the checkpoint")
            self._group.dissolve()
        else:
            self.fail(self.message or "every worker has ended")

    # -- what follows ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move towards the world that should be; see `EventLoop`."""
        self._settle_loss()
        self._group.kill_hung(now)
        self._group.advance(now)
        self._group.start_missing(now)

    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end."""
        self._group.close()
        for worker in self._pool:
            if worker.going and grace > 0:
                worker.terminate()
            else:
                worker.kill()

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Have all end; see `EventLoop`."""
        if kill:
            self._pool.kill()
        elif self._pool:
            self._group.form_if_ready(now)
        return not self._pool

    def advance_finish(self, late: bool) -> bool:
        """Members end by themselves, or are ended: those that wait for a new world wait in vain."""
        late = late or self._group.membership.stuck
        self._pool.kill(worker for worker in self._pool if late or not worker.going)
        return not any(worker.going for worker in self._pool)

    def close(self) -> None:
        """End all that is left."""
        self._pool.kill()
        self._pool.sweep()
        self._pool.reap()
        self._backend.close()
