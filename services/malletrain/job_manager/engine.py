"""The shell around the core: takes stimuli in, stores each step, and sees to it that its effects happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

import structlog

from malletrain.job_manager.effects import Effect, ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor
from malletrain.job_manager.jobs import Job
from malletrain.job_manager.launchers.base import Launcher, LaunchError, LaunchOrder, ProcessesLeftError
from malletrain.job_manager.machine import Step, advance
from malletrain.job_manager.stimuli import (
    NodesReleased,
    Outcome,
    PlanReceived,
    Shutdown,
    Stimulus,
    SupervisorEnded,
    SupervisorSeen,
    Ticked,
    TrainerDone,
)
from malletrain.job_manager.store import Store, Submission
from malletrain.job_manager.world import Notice, Policy, World
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import UnavailableError
from malletrain.runtime.hub import Hub

Report = Callable[[SupervisorSeen, int], Coroutine[None, None, None]]
Notify = Callable[[str, Notice], Coroutine[None, None, None]]


class Engine:
    """Owns the present state. Everything runs on one event loop: a step is never interrupted.

    Effects follow from the state alone and are safe to repeat: those that did not come off are tried again at the
    next tick, and after a restart of the process.
    """

    def __init__(
        self, store: Store, launcher: Launcher, policy: Policy, clock: Clock, notify: Notify, report: Report
    ) -> None:
        """Take over what the store knows; nothing is started before `run`.

        Args:
            store: What must not be forgotten.
            launcher: Owns the processes.
            policy: Limits and graces.
            clock: Wall clock.
            notify: Tells trainers of changes in advance.
            report: Told of workers that have failed, and how many nodes their job uses.
        """
        self._report = report
        self.jobs: Hub[tuple[Job, ...]] = Hub()
        self._store = store
        self._launcher = launcher
        self._policy = policy
        self._clock = clock
        self._notify = notify
        self._world = store.load()
        self._running: set[Effect] = set()
        self._group: asyncio.TaskGroup | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def world(self) -> World:
        """What JobManager knows now."""
        return self._world

    def apply(self, stimulus: Stimulus, submission: Callable[[Step], Submission] | None = None) -> Step:
        """Take a stimulus in: stored before anything is done about it.

        Args:
            stimulus: What happened.
            submission: Makes the record of the submission that the stimulus is, stored with it.

        Raises:
            StalePlanError: a plan does not fit the present.
            NotFoundError: the stimulus is for a job that is not active.
        """
        step = advance(self._world, stimulus, self._clock.time(), self._policy)
        record = None if submission is None else submission(step)
        generation = step.world.generation if isinstance(stimulus, PlanReceived) else None
        if step.changed or step.events or generation is not None or record is not None:
            self._store.save(step.changed, step.events, generation, record)
        self._world = step.world
        for event in step.events:
            before = None if event.from_state is None else event.from_state.value
            self._log.info("job", job=event.job_id, before=before, now=event.to_state.value, reason=event.reason)
        if step.changed:
            self.jobs.publish(step.changed)
        self._see_to(step.effects)
        if self._group is not None:
            for job_id, notice in step.notices:
                self._group.create_task(self._notify(job_id, notice))
        return step

    async def run(self, reconcile_seconds: float) -> None:
        """Find running jobs again, then see to effects and time limits until cancelled."""
        await self._sweep_strays()
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                supervised = [job for job in self._world.jobs.values() if job.supervised]
                self._see_to(StartSupervisor(job.id, job.incarnation) for job in supervised)
                while True:
                    self._tick()
                    await asyncio.sleep(reconcile_seconds)
            finally:
                self._group = None

    async def shut_down(self) -> None:
        """Stop every job that runs, and record that it waits: to be called after `run` was cancelled."""
        self.apply(Shutdown())
        grace = self._policy.stop_grace_seconds

        async def end(job: Job) -> None:
            await self._launcher.stop(job.id, job.incarnation, grace)
            self.apply(await self._launcher.collect(job.id, job.incarnation))

        await asyncio.gather(*(end(job) for job in self._world.jobs.values() if job.supervised))

    async def clear(self, nodes: frozenset[str]) -> None:
        """Wait until no job holds any of the nodes and no process is left there.

        Raises:
            UnavailableError: JobManager ends before.
        """
        with self.jobs.subscribe() as changes:
            if self._held(nodes):
                async for _ in changes:
                    if not self._held(nodes):
                        break
                else:
                    raise UnavailableError("JobManager ends")
        await self._launcher.sweep_nodes(nodes, self._supervised())

    def _held(self, nodes: frozenset[str]) -> bool:
        return any(nodes.intersection(job.held) for job in self._world.jobs.values())

    def _supervised(self) -> list[str]:
        return [job.id for job in self._world.jobs.values() if job.supervised]

    async def _sweep_strays(self) -> None:
        while True:
            try:
                ended = await self._launcher.sweep_strays(self._supervised())
            except ProcessesLeftError as error:
                self._log.error("processes that belong to no running job do not end", error=str(error))
                continue
            if ended:
                self._log.warning("ended processes that belong to no running job", processes=ended)
            return

    def _tick(self) -> None:
        for job in tuple(self._world.jobs.values()):
            if job.supervised and job.done_since is None and self._launcher.is_done(job.id):
                self.apply(TrainerDone(job.id))
        self.apply(Ticked())

    def _see_to(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if self._group is not None and effect not in self._running:
                self._running.add(effect)
                self._group.create_task(self._perform(effect), name=str(effect))

    async def _perform(self, effect: Effect) -> None:
        try:
            match effect:
                case StartSupervisor(job_id, incarnation):
                    await self._mind(job_id, incarnation)
                case SetHosts():
                    await self._set_hosts(effect)
                case ReleaseHosts(job_id, incarnation, nodes, grace):
                    await self._launcher.release(job_id, incarnation, nodes, grace)
                    self.apply(NodesReleased(job_id, incarnation, nodes))
                case StopSupervisor(job_id, incarnation, grace):
                    await self._launcher.stop(job_id, incarnation, grace)
        except ProcessesLeftError as error:
            self._log.error("processes do not end, tried again", effect=str(effect), error=str(error))
        finally:
            self._running.discard(effect)

    async def _set_hosts(self, effect: SetHosts) -> None:
        job = self._world.jobs.get(effect.job_id)
        if job is None:
            return
        seen = await self._launcher.set_hosts(effect.job_id, effect.incarnation, effect.sequence, effect.nodes)
        if seen is not None:
            self.apply(seen)

    async def _mind(self, job_id: str, incarnation: int) -> None:
        """See a supervisor through its life: start or adopt it, watch it, and take in how it ended."""
        try:
            await self._launcher.start(job_id, incarnation, lambda: self._order(job_id, incarnation))
        except LaunchError as error:
            self.apply(SupervisorEnded(job_id, incarnation, Outcome.FAILED, str(error), None, ()))
            return
        async for seen in self._launcher.watch(job_id, incarnation):
            self.apply(seen)
            if seen.failures and self._group is not None and job_id in self._world.jobs:
                self._group.create_task(self._report(seen, len(self._world.jobs[job_id].commanded)))
        while True:
            try:
                ended = await self._launcher.collect(job_id, incarnation)
            except ProcessesLeftError as error:
                self._log.error("processes of a job do not end", job=job_id, error=str(error))
                continue
            self.apply(ended)
            return

    def _order(self, job_id: str, incarnation: int) -> LaunchOrder | None:
        job = self._world.jobs.get(job_id)
        if job is None or job.incarnation != incarnation or job.stop is not None:
            return None
        return LaunchOrder(job_id, incarnation, job.spec, job.sequence, job.commanded)
