"""A job whose workers change their scale while they run: Elastic Horovod."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from malletrain.supervisor.actor import Actor, Context, end_of
from malletrain.supervisor.backend import OpenBackend
from malletrain.supervisor.crew import Ended
from malletrain.supervisor.membership import Membership, Slot
from malletrain.supervisor.worker_command import split_python
from malletrain.supervisor.world import World

_TRIES_TO_WARM = 3

log = logging.getLogger(__name__)


class ElasticActor(Actor):
    """Owns the membership and the crew of one job."""

    def __init__(self, context: Context, open_backend: OpenBackend) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what there is to drive it by.
            open_backend: Starts what the workers find each other by.
        """
        self._backend = open_backend(
            lambda slot: self.later(lambda: self._world.came_back(slot)),
            lambda slot: self.later(lambda: self._world.registered(slot)),
        )
        defaults = self._backend.defaults(warm=split_python(context.launch.command) is not None)
        self._crew = context.crew(defaults)
        self._world = World(self._crew, self._backend)
        super().__init__(context, self._crew)

    @property
    def course(self) -> Membership:
        """How far it is."""
        return self._world.membership

    @property
    def fulfilled(self) -> bool:
        """Whether it is what is commanded."""
        return self._world.membership.fulfilled

    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts on which it trains."""
        return self._world.membership.confirmed_hosts

    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""
        return self._crew.failures

    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Its processes."""
        return self._crew.pids()

    def command(self, sequence: int, hosts: dict[str, int], now: float) -> None:
        """Take over a command; see `Actor`."""
        self._world.command(sequence, hosts, now)

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Take hosts out of the world; see `Actor`."""
        kill_at = max(now + grace, self._world.safe_to_kill_at(hosts))
        self._world.release(hosts)
        if self._world.membership.living and not self._world.membership.has_heir:
            self._world.save_and_end()
        return kill_at

    def killed_late(self, now: float) -> None:
        """Where the world closes, those that are left wait for the killed in vain."""
        del now
        if self._world.membership.closing:
            self._world.kill_members()

    # -- workers' ends ---------------------------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """See which workers have ended, and which are warm."""
        for ended in self._crew.reap():
            self._see_end(ended, now)
        self._world.see_warm()

    def _see_end(self, ended: Ended, now: float) -> None:
        before = self._world.membership
        end_of(ended)
        leaving = self.stopping or self.finishing or ended.code == 0
        self._world.lose(ended, leaving, now)
        if self.stopping:
            return
        commanded = ended.slot.host in before.commanded and not before.closing
        in_time = ended.slot in before.living or (ended.started and not before.world)
        if ended.code == 0 and in_time and (commanded or self.completed.exists()):
            self.begin_finish(now)
        elif commanded and (ended.hung or not ended.killed):
            self._note_failure(ended, now)
        self._settle_loss()

    def _note_failure(self, ended: Ended, now: float) -> None:
        self.message = ended.how
        count = self._crew.note_failure(ended.slot, now)
        if self._world.membership.world or self.finishing:
            return  # the others go on, or `_settle_loss` decides
        if ended.started or ended.going:
            self.fail(ended.how)
        elif count > _TRIES_TO_WARM:
            self.fail(f"{ended.how} before it was warm, {count} times")

    def _settle_loss(self) -> None:
        """Where nobody is left who could hand on the state, the job has failed, unless it left with hosts we took."""
        membership = self._world.membership
        if not membership.lost or self.finishing:
            return
        if any(slot.host not in membership.commanded for slot in membership.members):
            log.info("the state has left with its hosts: a new world goes on from the checkpoint")
            self._world.dissolve()
        else:
            self.fail(self.message or "every worker has ended")

    # -- what follows ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move towards the world that should be; see `Actor`."""
        self._world.kill_hung(now)
        self._world.advance(now)
        self._world.start_missing(now)

    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end."""
        self._world.close()
        for worker in self._crew:
            if worker.going and grace > 0:
                worker.terminate()
            else:
                worker.kill()

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Have all end; see `Actor`."""
        if kill:
            self._crew.kill()
        elif self._crew:
            self._world.form_if_ready(now)
        return not self._crew

    def advance_finish(self, late: bool) -> bool:
        """Members end by themselves, or are ended: those that wait for a new world wait in vain."""
        late = late or self._world.membership.stuck
        self._crew.kill(worker for worker in self._crew if late or not worker.going)
        return not any(worker.going for worker in self._crew)

    def close(self) -> None:
        """End all that is left."""
        self._crew.kill()
        self._crew.sweep()
        self._crew.reap()
        self._backend.close()
