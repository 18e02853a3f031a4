"""A job whose workers are restarted at every change: torchrun, and programs that we know nothing of."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping

from malletrain.common.job_folder import SAVING_FOLDER
from malletrain.supervisor.event_loop import Context, EventLoop, end_of, how_it_ended
from malletrain.supervisor.generation_state import GenerationState
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.restarting import RestartingBackend
from malletrain.supervisor.restarting_group import RestartingGroup
from malletrain.supervisor.worker_exit import ExitMeaning, Role, WorkerExit

_TRIES_TO_WARM = 3
_TRIES_TO_TRAIN = 3
_GOOD_SECONDS = 60.0
"""A generation that has trained so long has shown that the script works; what ends it later is no fault of that."""


class RestartingEventLoop(EventLoop):
    """Owns the generations of one job."""

    def __init__(self, context: Context, backend: RestartingBackend) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what there is to drive it by.
            backend: Says what processes there are.
        """
        saving = context.folder / SAVING_FOLDER
        shutil.rmtree(saving, ignore_errors=True)
        self._backend = backend
        self._members, self._standby = (context.pool(backend.defaults(), warm=backend.warm) for _ in range(2))
        self._group = RestartingGroup(self._members, self._standby, backend, saving)
        self._bad_starts = 0
        super().__init__(context, self._group, self._members)

    @property
    def progress(self) -> GenerationState:
        """How far it is."""
        return self._group.generation

    @property
    def fulfilled(self) -> bool:
        """Whether it is what is commanded."""
        return self._group.generation.fulfilled

    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts on which it trains."""
        return self._group.generation.confirmed_hosts

    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""
        return self._standby.failures

    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Processes of the present generation, and of the next where there is none."""
        return {**dict(self._standby.pids()), **dict(self._members.pids())}.items()

    def command(self, sequence: int, hosts: dict[str, int], now: float) -> None:
        """Take over a command; see `EventLoop`."""
        self._group.command(sequence, hosts, now)

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Take hosts out of the world; see `EventLoop`."""
        self._group.release(hosts, grace, now)
        return now + grace

    def killed_late(self, now: float) -> None:
        """The others of the generation need not wait for the killed."""
        self._group.hurry(now)

    # -- workers' ends ---------------------------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """See which workers have ended, and in which the job's own code runs."""
        for ended in self._standby.reap():
            self._see_standby_end(ended, now)
        for ended in self._members.reap():
            self._see_end(ended, now)
        self._group.see_started()

    def _see_standby_end(self, ended: WorkerExit, now: float) -> None:
        end_of(ended)
        # Between two generations, a script that ends before it looks for the others has no rank, and needs none.
        alone = ended.started and not self._group.generation.living
        asked = self.asked_to_stop(ended) or (ended.code == 0 and ended.slot.host in self.agents.leaving)
        meaning = ended.meaning(Role.RANK_ZERO if alone else Role.NEWCOMER, asked=asked)
        if meaning is ExitMeaning.DONE and not self.finishing:
            self.begin_finish(how_it_ended(ended, 1), now)
        if meaning is not ExitMeaning.FAILED or self.finishing:
            return
        self.message = ended.how
        count = self._standby.note_failure(ended.slot, now)
        if count > _TRIES_TO_WARM and not self._group.generation.living:
            self.fail(f"{ended.how} before it was warm, {count} times")

    def _see_end(self, ended: WorkerExit, now: float) -> None:
        end_of(ended)
        before = self._group.generation
        role = Role.RANK_ZERO if before.members[:1] == (ended.slot,) else Role.MEMBER
        meaning = ended.meaning(role, asked=self._asked(ended))
        over = self.stopping or self.finishing
        self._group.lose(ended, meaning, now, others_end=over or ended.code == 0)
        if over:
            return
        if meaning is ExitMeaning.DONE or (ended.code == 0 and self.completed.exists()):
            self.begin_finish(how_it_ended(ended, len(before.members)), now)
        elif meaning is ExitMeaning.FAILED:
            self._note_failure(ended, now)

    def _asked(self, ended: WorkerExit) -> bool:
        """Whether a member had been asked to leave.

        While the next generation only gets ready, nobody has been asked for anything yet. A batch system that takes a
        node back may signal the workers there itself, and scripts often agree to stop together.
        """
        generation = self._group.generation
        if self.asked_to_stop(ended) or generation.leaving:
            return True
        hosts = {host for host, _ in generation.world}
        return ended.code == 0 and bool(hosts & self.agents.leaving)

    def _note_failure(self, ended: WorkerExit, now: float) -> None:
        """The generation starts again from its checkpoint; a script that fails each time soon fails for good."""
        self.message = ended.how
        self._standby.note_failure(ended.slot, now)
        good = now - self._group.formed_at >= _GOOD_SECONDS
        own_fault = ended.code > 0
        self._bad_starts = self._bad_starts + 1 if own_fault and not good else 0
        if self._bad_starts >= _TRIES_TO_TRAIN:
            self.fail(f"{ended.how}, {self._bad_starts} times within {_GOOD_SECONDS:g} s of a start")

    # -- what follows ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move towards the generation that should be; see `EventLoop`."""
        self._group.advance(now)

    def begin_stop(self, grace: float) -> None:
        """Ask all to save and end."""
        self._standby.kill()
        for worker in self._members:
            if grace > 0:
                worker.terminate()
            else:
                worker.kill()

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Have all end; see `EventLoop`."""
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
        for pool in (self._standby, self._members):
            pool.kill()
        self._members.sweep()
        for pool in (self._standby, self._members):
            pool.reap()
        self._backend.close()
