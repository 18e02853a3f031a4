"""The shell around the core: takes stimuli in, stores each step, and sees to it that its effects happen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import structlog

from malletrain.job_manager.effects import (
    Effect,
    ReleaseHosts,
    SetHosts,
    StartSupervisor,
    StopSupervisor,
    required_effects,
)
from malletrain.job_manager.jobs import Job
from malletrain.job_manager.launchers.base import Launcher, LaunchError, LaunchOrder
from malletrain.job_manager.machine import Step, advance
from malletrain.job_manager.stimuli import (
    NodesReleased,
    Outcome,
    PlanReceived,
    Shutdown,
    Stimulus,
    SupervisorEnded,
    Ticked,
    TrainerDone,
)
from malletrain.job_manager.store import Store, Submission
from malletrain.job_manager.world import Notice, Policy, World
from malletrain.runtime.clock import Clock
from malletrain.runtime.hub import Hub

Notify = Callable[[str, Notice], Awaitable[None]]


class Engine:
    """Owns the present state. Everything runs on one event loop: a step is never interrupted.

    Effects follow from the state alone and are safe to repeat: those that did not come off are tried again at the
    next tick, and after a restart of the process.
    """

    def __init__(self, store: Store, launcher: Launcher, policy: Policy, clock: Clock, notify: Notify) -> None:
        """Take over what the store knows; nothing is started before `run`."""
        self.jobs: Hub[tuple[Job, ...]] = Hub()
        self._store = store
        self._launcher = launcher
        self._policy = policy
        self._clock = clock
        self._notify = notify
        self._world = store.load()
        self._running: dict[Effect, asyncio.Task[None]] = {}
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
        for job_id, notice in step.notices:
            self._spawn(self._notify(job_id, notice))
        return step

    async def run(self, reconcile_seconds: float) -> None:
        """Find running jobs again, then see to effects and time limits until cancelled."""
        strays = await self._launcher.sweep_strays(self._supervised())
        if strays:
            self._log.warning("ended processes that belong to no running job", processes=strays)
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._see_to(StartSupervisor(job.id, job.incarnation) for job in self._world.jobs.values() if job.supervised)
                while True:
                    self._tick()
                    await asyncio.sleep(reconcile_seconds)
            finally:
                self._group = None

    async def shut_down(self) -> None:
        """Stop every job that runs, and record that it waits: to be called after `run` was cancelled."""
        self.apply(Shutdown())
        supervised = [job for job in self._world.jobs.values() if job.supervised]
        await asyncio.gather(*(self._end(job) for job in supervised))

    async def clear(self, nodes: frozenset[str]) -> None:
        """Wait until no job holds any of the nodes and no process is left there."""
        with self.jobs.subscribe() as changes:
            if self._held(nodes):
                async for _ in changes:
                    if not self._held(nodes):
                        break
        await self._launcher.sweep_nodes(nodes, self._supervised())

    def _held(self, nodes: frozenset[str]) -> bool:
        return any(nodes.intersection(job.held) for job in self._world.jobs.values())

    def _supervised(self) -> list[str]:
        return [job.id for job in self._world.jobs.values() if job.supervised]

    def _tick(self) -> None:
        for job in tuple(self._world.jobs.values()):
            if job.supervised and job.done_since is None and self._launcher.is_done(job.id):
                self.apply(TrainerDone(job.id))
        self.apply(Ticked())

    def _see_to(self, effects: "Iterable[Effect]") -> None:
        for effect in effects:
            if self._group is not None and effect not in self._running:
                self._running[effect] = self._group.create_task(self._perform(effect), name=str(effect))

    def _spawn(self, work: Coroutine[None, None, None] | Awaitable[None]) -> None:
        ...
