"""A job whose workers are restarted at every change: torchrun, and programs that we know nothing of."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping

from malletrain.supervisor.actor import Actor, Context, end_of
from malletrain.supervisor.crew import Ended
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.restarting import RestartingBackend
from malletrain.supervisor.restarting_world import RestartingWorld
from malletrain.supervisor.rotation import Rotation

_TRIES_TO_WARM = 3
_TRIES_TO_TRAIN = 3
_GOOD_SECONDS = 60.0
"""A generation that has trained so long has shown that the script works; what ends it later is no fault of that."""


class RestartingActor(Actor):
    """Owns the generations of one job."""

    def __init__(self, context: Context, backend: RestartingBackend) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what there is to drive it by.
            backend: Says what processes there are.
        """
        saving = context.folder / "saving"
        shutil.rmtree(saving, ignore_errors=True)
        self._backend = backend
        self._members, self._standby = (context.crew(backend.defaults(), warm=backend.warm) for _ in range(2))
        self._world = RestartingWorld(self._members, self._standby, backend, saving)
        self._bad_starts = 0
        super().__init__(context, self._world)

    @property
    def course(self) -> Rotation:
        """How far it is."""
        return self._world.rotation

    @property
    def fulfilled(self) -> bool:
        """Whether it is what is commanded."""
        return self._world.rotation.fulfilled

    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts on which it trains."""
        return self._world.rotation.confirmed_hosts

    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""
        return self._standby.failures

    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Processes of the present generation, and of the next where there is none."""
        return {**dict(self._standby.pids()), **dict(self._members.pids())}.items()

    def command(self, sequence: int, hosts: dict[str, int], now: float) -> None:
        """Take over a command; see `Actor`."""
        self._world.command(sequence, hosts, now)

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Take hosts out of the world; see `Actor`."""
        self._world.release(hosts, grace, now)
        return now + grace

    def killed_late(self, now: float) -> None:
        """The others of the generation need not wait for the killed."""
        self._world.hurry(now)

    # -- workers' ends ---------------------------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """See which workers have ended, and in which the job's own code runs."""
        for ended in self._standby.reap():
            self._see_standby_end(ended, now)
        for ended in self._members.reap():
            self._see_end(ended, now)
        self._world.see_started()

    def _see_standby_end(self, ended: Ended, now: float) -> None:
        end_of(ended)
        if ended.killed and not ended.hung:
            return
        self.message = ended.how
        count = self._standby.note_failure(ended.slot, now)
        if count > _TRIES_TO_WARM and not self._world.rotation.living:
            self.fail(f"{ended.how} before it was warm, {count} times")

    def _see_end(self, ended: Ended, now: float) -> None:
        end_of(ended)
        before = self._world.rotation
        self._world.lose(ended, now, others_end=self.stopping or self.finishing or ended.code == 0)
        if self.stopping or self.finishing:
            return
        if ended.code == 0 and (not before.leaving or self.completed.exists()):
            self.begin_finish(now)
        elif not before.leaving and (ended.hung or not ended.killed):
            self._note_failure(ended, now)

    def _note_failure(self, ended: Ended, now: float) -> None:
        """The generation starts again from its checkpoint; a script that fails each time soon fails for good."""
        self.message = ended.how
        self._standby.note_failure(ended.slot, now)
        good = now - self._world.formed_at >= _GOOD_SECONDS
        own_fault = ended.code > 0
        self._bad_starts = self._bad_starts + 1 if own_fault and not good else 0
        if self._bad_starts >= _TRIES_TO_TRAIN:
            self.fail(f"{ended.how}, {self._bad_starts} times within {_GOOD_SECONDS:g} s of a start")

    # -- what follows ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move towards the generation that should be; see `Actor`."""
        self._world.advance(now)

    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end."""
        self._standby.kill()
        for worker in self._members:
            if grace > 0:
                worker.terminate()
            else:
                worker.kill()

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Have all end; see `Actor`."""
        del now
        if kill:
            self._members.kill()
        return not (self._members or self._standby)

    def advance_finish(self, late: bool) -> bool:
        """Members end by themselves, or are ended."""
        self._standby.kill()
        if late:
            self._members.kill()
        return not self._members

    def close(self) -> None:
        """End all that is left."""
        for crew in (self._standby, self._members):
            crew.kill()
        self._members.sweep()
        for crew in (self._standby, self._members):
            crew.reap()
        self._backend.close()
