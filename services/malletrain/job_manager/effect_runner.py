"""Performs the effects that the state machine asks for: starts supervisors, follows them, and sends them commands."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import structlog

from malletrain.common.tasks import ending
from malletrain.job_manager.launching.folder import StartPostponedError, SupervisorStartError, clean_text
from malletrain.job_manager.launching.launcher import SupervisorLauncher
from malletrain.job_manager.launching.processes import ProcessesLeftError
from malletrain.job_manager.launching.starting import LaunchOrder
from malletrain.job_manager.machine.effects import (
    Effect,
    ReleaseHosts,
    SetHosts,
    StartSupervisor,
    StopSupervisor,
    is_pending,
    is_recorded,
    may_precede_record,
)
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import Notice
from malletrain.job_manager.machine.stimuli import NodesReleased, Outcome, Progressed, Stimulus, SupervisorEnded
from malletrain.job_manager.peers import ManagerPeers
from malletrain.job_manager.storage.change_writer import ChangeWriter
from malletrain.job_manager.telemetry.change_spans import ChangeSpans

_PAUSE_SECONDS = 5.0
_COLLECTIONS = 6
"""So many attempts, half a minute in all: then processes of another account that do not end are given up."""


class StimuliTaker(Protocol):
    """Takes in how effects ended; the engine, which owns the state."""

    def apply(self, stimulus: Stimulus) -> object:
        """Apply what happened."""

    def note_progress(self, reports: Iterable[Progressed]) -> None:
        """Take over how far jobs are."""


class EffectRunner:
    """Performs effects, none of them twice at the same time. One that fails is required again at a later stimulus."""

    def __init__(
        self,
        launcher: SupervisorLauncher,
        peers: ManagerPeers,
        spans: ChangeSpans,
        writer: ChangeWriter,
        jobs: Callable[[], Mapping[str, Job]],
        owner: StimuliTaker,
    ) -> None:
        """
        Args:
            launcher: Owns the supervisors.
            peers: Scavenger and Monitor.
            spans: Records when commands are sent.
            writer: Knows what is stored: most effects begin after that.
            jobs: The active jobs as they are now, by identifier.
            owner: Gets the outcome of each effect as a stimulus, and jobs' progress.
        """
        self._launcher = launcher
        self._peers = peers
        self._spans = spans
        self._writer = writer
        self._jobs = jobs
        self._owner = owner
        self._running: set[Effect] = set()
        self._adopting: set[Effect] = set()
        self._group: asyncio.TaskGroup | None = None
        self._log = structlog.get_logger(__name__)

    @contextmanager
    def performed_by(self, group: asyncio.TaskGroup) -> Iterator[None]:
        """Perform effects as tasks of a group while the context lasts; before and after it none begins."""
        self._group = group
        try:
            yield
        finally:
            self._group = None

    def notify(self, job_id: str, notice: Notice, nodes: int) -> None:
        """Have Monitor pass a notice on to a job's trainer, with the number of nodes that the job is about to have."""
        if self._group is not None:
            self._group.create_task(ending(self._peers.notify(job_id, notice, nodes), "notice"))

    @property
    def is_urgent(self) -> bool:
        """Whether nodes are being given back, or supervisors of an earlier JobManager have not been found again."""
        freeing = any(isinstance(effect, ReleaseHosts | StopSupervisor) for effect in self._running)
        return freeing or bool(self._adopting)

    def adopt(self, supervisors: Iterable[StartSupervisor]) -> None:
        """Find supervisors again that an earlier JobManager has started."""
        self._adopting.update(supervisors)
        self.dispatch(self._adopting)

    def dispatch(self, effects: Iterable[Effect]) -> bool:
        """Begin to perform the effects that are recorded and not being performed already.

        Returns:
            Whether a release is among those that begin.
        """
        stored, failing, releasing = self._writer.stored_jobs, self._writer.failing, False
        for effect in effects:
            if not is_recorded(effect, stored) and not (failing and may_precede_record(effect, stored)):
                continue
            if self._group is not None and effect not in self._running:
                self._running.add(effect)
                self._group.create_task(ending(self._perform(effect), "effect"), name=str(effect))
                releasing |= isinstance(effect, ReleaseHosts)
        return releasing

    async def _perform(self, effect: Effect) -> None:
        try:
            match effect:
                case StartSupervisor():
                    await self._supervise(effect)
                case SetHosts():
                    with self._spans.command(effect):
                        await self._set_hosts(effect)
                case ReleaseHosts(job_id, incarnation, nodes, grace):
                    with self._spans.command(effect):
                        await self._launcher.release(job_id, incarnation, nodes, grace)
                    self._owner.apply(NodesReleased(job_id, incarnation, nodes))
                case StopSupervisor(job_id, incarnation, grace, keep, sequence):
                    with self._spans.command(effect):
                        await self._launcher.stop(
                            job_id, incarnation, grace, keep, sequence, lambda: is_pending(effect, self._jobs())
                        )
        except ProcessesLeftError as error:
            self._log.error("processes do not end, tried again", effect=str(effect), error=str(error))
        except (OSError, ValueError) as error:
            # What a job has left in its folder must not end the other jobs' JobManager. The effect is repeated.
            self._log.exception("effect failed, tried again", effect=str(effect), error=clean_text(str(error)))
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._running.discard(effect)
            self._adopting.discard(effect)

    async def _set_hosts(self, effect: SetHosts) -> None:
        job = self._jobs().get(effect.job_id)
        if job is None:
            return
        if job.kept and not self._launcher.suits(job.id, effect.incarnation, job.spec, effect.nodes):
            await self._launcher.stop(job.id, effect.incarnation, 0.0)  # another one is started then
            return
        seen = await self._launcher.set_hosts(effect.job_id, effect.incarnation, effect.sequence, effect.nodes)
        if seen is not None:
            self._owner.apply(seen)

    async def _supervise(self, effect: StartSupervisor) -> None:
        """Start or adopt a supervisor, follow its state, and apply how it ended."""
        job_id, incarnation = effect.job_id, effect.incarnation
        try:
            with self._spans.command(effect):
                await self._launcher.start(job_id, incarnation, lambda: self._order(job_id, incarnation))
        except SupervisorStartError as error:
            later = isinstance(error, StartPostponedError)
            self._owner.apply(SupervisorEnded(job_id, incarnation, Outcome.FAILED, str(error), None, (), later))
            return
        failures: Mapping[str, int] = {}
        async for seen in self._launcher.watch(job_id, incarnation):
            before, known = self._note_trained(job_id), failures
            failures = dict(seen.failures)
            self._owner.apply(seen)
            self._adopting.discard(effect)
            new = [name for name, count in failures.items() if count > known.get(name, 0)]
            self._report(before, new)
        ended = await self._collect(job_id, incarnation)
        before = self._note_trained(job_id)
        if ended.failure is not None and not failures:
            self._report(before, [ended.failure.node])
        progress = await self._peers.read_progress(job_id)
        if progress is not None:
            self._owner.note_progress([progress])
        self._owner.apply(ended)

    def _note_trained(self, job_id: str) -> Job | None:
        """A job as it is before something happens to it, after it was noted where it trains well."""
        if (job := self._jobs().get(job_id)) is not None:
            self._peers.note_trained(job)
        return job

    def _report(self, job: Job | None, nodes: Sequence[str]) -> None:
        """Have it known that workers have failed on these nodes."""
        if job is not None and nodes and self._group is not None:
            reporting = self._peers.report_failures(job, nodes, self._jobs().values())
            self._group.create_task(ending(reporting, "report of failures"))

    async def _collect(self, job_id: str, incarnation: int) -> SupervisorEnded:
        for attempt in itertools.count(1):
            try:
                return await self._launcher.collect(job_id, incarnation, last=attempt >= _COLLECTIONS)
            except ProcessesLeftError as error:
                self._log.error("processes of a job do not end", job=job_id, error=str(error))
        raise AssertionError("counted to the end")

    def _order(self, job_id: str, incarnation: int) -> LaunchOrder | None:
        job = self._jobs().get(job_id)
        if job is None or job.incarnation != incarnation or job.stop is not None:
            return None
        fleet = job.fleet_id if job.spec.shares_across_nodes else ""
        restarts_left = max(0, job.spec.max_restarts - job.counted_failures)
        return LaunchOrder(job_id, incarnation, job.owner, job.spec, job.sequence, job.commanded, fleet, restarts_left)
