"""The shell around the state machine: applies stimuli, and stores and publishes what comes out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import structlog

from malletrain.common.gpus import node_of
from malletrain.common.tasks import lasting
from malletrain.job_manager.effect_runner import EffectRunner
from malletrain.job_manager.launching.launcher import SupervisorLauncher
from malletrain.job_manager.launching.processes import ProcessesLeftError
from malletrain.job_manager.machine.effects import StartSupervisor, required_effects, stop_grace
from malletrain.job_manager.machine.fair_share import changed_uses
from malletrain.job_manager.machine.hangs import without_evidence
from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.job_table import JobTable
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.progress_buffer import MAX_ENDED_JOBS, EndedJobs, ProgressBuffer
from malletrain.job_manager.machine.state import JobsChanged, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.stimuli import (
    REQUESTS,
    ClockStepped,
    PlanReceived,
    Progressed,
    ProgressNoted,
    Shutdown,
    Stimulus,
    SupervisorEnded,
    Ticked,
    TrainerDone,
)
from malletrain.job_manager.peers import ManagerPeers
from malletrain.job_manager.storage.change import Change, Submission
from malletrain.job_manager.storage.change_writer import ChangeWriter
from malletrain.job_manager.storage.store import JobStore
from malletrain.job_manager.telemetry.change_spans import ChangeSpans
from malletrain.job_manager.telemetry.metrics import JobManagerMetrics
from malletrain.runtime.clock import Clock, WatchedClock
from malletrain.runtime.database.errors import CommitUnknownError, DatabaseUnavailableError
from malletrain.runtime.errors import UnavailableError
from malletrain.runtime.hub import Hub
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.machine_loop import MachineLoop, MachineStep

_SWEEPS = 3
_JOBS_AT_ONCE = 20
_LOOKS_PER_TICK = 200
"""With more jobs, each is looked at every few ticks: whether its trainer says that it is done is not urgent."""
_NOTED_AT_ONCE = 20
_NOTING_PAUSE_SECONDS = 0.01

Recorded = Callable[[TransactionResult], Submission]
"""Makes the record of the submission that a stimulus is."""
ManagerStep = MachineStep[ManagerState, Stimulus, TransactionResult, Recorded]


class Engine:
    """Owns the state. All of it runs on one event loop, so that no two stimuli are applied at the same time.

    Effects follow from the state alone and may be repeated: one that failed is tried again at the next tick, and after
    a restart of the process.
    """

    def __init__(
        self,
        store: JobStore,
        launcher: SupervisorLauncher,
        peers: ManagerPeers,
        recorder: FlightRecorder[ManagerState, Stimulus, TransactionResult],
        clock: Clock,
        metrics: JobManagerMetrics,
        spans: ChangeSpans,
        last_number: int = 0,
    ) -> None:
        """Load the state. Nothing is started before `run`.

        Args:
            store: Keeps jobs and journal.
            launcher: Owns the supervisors.
            peers: Scavenger and Monitor.
            recorder: Runs the state machine.
            clock: Wall clock.
            metrics: Counts each change.
            spans: Traces changes of scale, from changed jobs and commands.
            last_number: New jobs get numbers above this one, too, whatever the store knows.
        """
        self.jobs: Hub[JobsChanged] = Hub(merge=JobsChanged.followed_by)
        self._launcher = launcher
        self._peers = peers
        self._policy = recorder.machine.policy
        self._clock = watched = WatchedClock(clock)
        watched.follow(self._move_times)
        self._metrics = metrics
        self._spans = spans
        loaded = store.load()
        jobs = {name: without_evidence(job) for name, job in loaded.jobs.items()}
        state = replace(loaded, jobs=JobTable.of(jobs), last_number=max(loaded.last_number, last_number))
        self._loop = MachineLoop[ManagerState, Stimulus, TransactionResult, Recorded](
            state, recorder, watched, self._perform, store=self._store_step, publish=self._publish
        )
        self._progress = ProgressBuffer()
        self._ended = EndedJobs(store.last_ended(MAX_ENDED_JOBS))
        self._writer = ChangeWriter(store, state.jobs, self._perform_recorded, self._loop.published)
        self._effects = EffectRunner(launcher, peers, spans, self._writer, lambda: self.state.jobs, self)
        self._looks: deque[str] = deque()
        self._has_begun = False
        self._log = structlog.get_logger(__name__)

    @property
    def state(self) -> ManagerState:
        """What JobManager knows now."""
        return self._loop.state

    @property
    def is_quiet(self) -> bool:
        """Whether what can wait may be done: the idle nodes are known, the supervisors of an earlier JobManager have
        been found again, and no node is being given back.
        """
        return self._has_begun and self.state.idle is not None and not self._effects.is_urgent

    def is_active(self, job_id: str) -> bool:
        """Whether there is such a job that is not in a final state."""
        return job_id in self.state.jobs

    def apply(self, stimulus: Stimulus, submission: Recorded | None = None) -> TransactionResult:
        """Apply a stimulus. What it changes is stored soon: before any effect begins, except that nodes are released
        at once.

        While the database does not answer, requests are refused. What has happened is applied nevertheless and stored
        later.

        Args:
            stimulus: What happened.
            submission: Makes the record of the submission that the stimulus is; stored in the same transaction.

        Raises:
            StalePlanError: a plan does not fit the state.
            NotFoundError: the stimulus is for a job that is not active.
            DatabaseUnavailableError: the stimulus is a request, and nothing was done. See also `wait_until_stored`.
            CommitUnknownError: the stimulus is a request; it was done, and its record is stored or will be, unless this
                process is killed before.
            Exception: a defect of the state machine; see `FlightRecorder.advance`. The state stays as it was.
        """
        self._note_progress_before(stimulus)
        return self._loop.apply(stimulus, submission)

    def _move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: what lasts for a while lasts as long as before."""
        self._log.warning("the clock was set", seconds=round(seconds, 3))
        self._peers.move_times(seconds)
        self.apply(ClockStepped(seconds))

    def _store_step(self, step: ManagerStep) -> None:
        """Have stored what a step changes, soon or, if it is a request, at once; it is refused if that fails."""
        result, after = step.result, step.result.state
        record = None if step.detail is None else step.detail(result)
        uses, forgotten = changed_uses(step.before.ledger, after.ledger)
        usage = {(row.job_number, row.day): row for row in result.usage}
        change = Change(result.changed, result.events, _generation(step), record, uses, forgotten, usage=usage)
        if not change:
            return
        if isinstance(step.stimulus, REQUESTS):
            self._writer.write_now(change, after.jobs)
        else:
            self._writer.add(change, after.jobs)

    def _perform(self, step: ManagerStep) -> bool:
        """Begin effects; returns whether nodes are being released by them."""
        result = step.result
        self._ended.note_ended(result.changed)
        self._metrics.note_applied(step.stimulus, step.before, result, self._clock.monotonic() - step.now.monotonic)
        if result.changed:
            self._spans.note_changes(result.changed)
        return self._effects.dispatch(result.effects)

    def _publish(self, step: ManagerStep) -> None:
        """Tell watchers, trainers and the log what has changed."""
        result = step.result
        for event in result.events:
            old = None if event.from_state is None else event.from_state.value
            self._log.info(
                "job state changed", job=event.job_id, before=old, now=event.to_state.value, reason=event.reason
            )
        if result.changed:
            jobs = {job.id: job for job in result.changed}
            progressed = jobs.keys() if isinstance(step.stimulus, ProgressNoted) else frozenset()
            self.jobs.publish(JobsChanged(jobs, _generation(step), progressed))
        for job_id, notice, nodes in result.notices:
            self._effects.notify(job_id, notice, nodes)

    async def wait_until_stored(self, *job_ids: str) -> None:
        """Wait until all that has been applied is stored. To be awaited immediately before a request is applied.

        Args:
            job_ids: Jobs whose newest samples become part of the state before.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        if (noted := self._progress.take_newer(self.state.jobs, job_ids)) is not None:
            self.apply(noted)
        while self._writer.behind:
            await self._writer.wait_until_stored()

    async def caught_up(self) -> None:
        """Wait until all that has been applied so far is stored, unless the database does not answer."""
        with contextlib.suppress(DatabaseUnavailableError):
            await self._writer.wait_until_stored()

    async def apply_plan(self, plan: PlanReceived, note_rescaled: Callable[[Iterable[str]], None]) -> TransactionResult:
        """Apply a plan, and wait until that is stored.

        Args:
            note_rescaled: Called with the jobs that it changes, before any command goes out.

        Raises:
            StalePlanError: nothing of it fits the state.
            DatabaseUnavailableError: the database does not answer, and nothing was done.
            CommitUnknownError: the plan is applied, and will be stored unless this process is killed before.
        """
        if self._writer.failing:
            raise DatabaseUnavailableError("job_manager")
        result = self.apply(plan)
        note_rescaled(result.rescaled)
        try:
            await self._writer.wait_until_stored()
        except DatabaseUnavailableError as error:
            raise CommitUnknownError("job_manager") from error
        return result

    def note_progress(self, reports: Iterable[Progressed]) -> None:
        """Take over what Monitor says of jobs. What decides nothing becomes part of the state later."""
        for report in reports:
            job = self.state.jobs.get(report.job_id)
            if job is None:
                self._correct(self._ended.corrected(report))
            elif self._progress.note_progress(job, report) is not None:
                self.apply(report)

    def _correct(self, job: Job | None) -> None:
        """Store and publish a job that had ended before all its samples were known."""
        if job is not None:
            self._log.info("samples of an ended job corrected", job=job.id, samples=job.samples)
            self._writer.add(Change([job]), self.state.jobs)
            self.jobs.publish(JobsChanged({job.id: job}, None, frozenset({job.id})))

    def with_newest_samples(self, job: Job) -> Job:
        """A job with its newest samples, which need not be part of the state yet."""
        return self._progress.with_newest_samples(job)

    def samples_in_usage(self) -> dict[int, int]:
        """The newest samples of the jobs whose usage goes on, by number."""
        jobs = self.state.jobs
        return {jobs[name].number: self._progress.samples_of(jobs[name]) for name in self.state.usage}

    def _note_progress_before(self, stimulus: Stimulus) -> None:
        """Have samples in the state before a stimulus that may end their job."""
        if isinstance(stimulus, SupervisorEnded | Shutdown):
            only = [stimulus.job_id] if isinstance(stimulus, SupervisorEnded) else None
            if (noted := self._progress.take_newer(self.state.jobs, only)) is not None:
                self.apply(noted)

    async def run(self, reconcile_seconds: float, progress_seconds: float) -> None:
        """Adopt the supervisors that run, then perform effects and check time limits, until cancelled.

        Args:
            reconcile_seconds: Time between two ticks.
            progress_seconds: Time between two writes of progress.
        """
        await self._sweep_strays()
        async with asyncio.TaskGroup() as group:
            with self._effects.performed_by(group):
                supervised = [job for job in self.state.jobs.values() if job.has_supervisor]
                group.create_task(lasting(self._writer.run(), "changes to store"))
                group.create_task(lasting(self._write_progress(progress_seconds), "progress"))
                self._effects.adopt(StartSupervisor(job.id, job.incarnation) for job in supervised)
                self._has_begun = True
                while True:
                    await self._tick()
                    await asyncio.sleep(reconcile_seconds)

    async def shut_down(self) -> None:
        """Stop every job that runs, and record that it waits. To be called after `run` was cancelled."""
        self.apply(Shutdown())

        async def end(job: Job) -> None:
            await self._launcher.stop(job.id, job.incarnation, stop_grace(job, self._policy))
            self.apply(await self._launcher.collect(job.id, job.incarnation))

        await asyncio.gather(*(end(job) for job in self.state.jobs.values() if job.has_supervisor))

    async def flush(self) -> None:
        """Try once more to store what waits for the database. To be called at the end."""
        await self._writer.flush()
        if self._writer.behind:
            self._log.error("what happened lately is not stored: the next JobManager sees it by what it finds")

    async def clear(self, nodes: frozenset[str]) -> None:
        """Wait until no job holds any of the nodes and no process is left there.

        Raises:
            UnavailableError: JobManager ends before.
        """
        with self.jobs.subscribe() as changes:
            if self._are_held(nodes):
                async for _ in changes:
                    if not self._are_held(nodes):
                        break
                else:
                    raise UnavailableError("JobManager ends")
        await self._launcher.sweep_nodes(nodes, lambda: [job.id for job in self.state.jobs.values() if job.supervised])

    async def remove_ended(self, numbers: Collection[int], request_ids: Collection[str]) -> None:
        """Have jobs that have ended deleted from the database, after all that happened before.

        Raises:
            DatabaseUnavailableError: the database does not answer; they are deleted later.
        """
        self._ended.forget(numbers)
        self._writer.add(Change(removed_jobs=numbers, removed_requests=request_ids), self.state.jobs)
        await self._writer.wait_until_stored()

    def _are_held(self, nodes: frozenset[str]) -> bool:
        jobs = JobTable.over(self.state.jobs).on_nodes(nodes)
        return any(node_of(name) in nodes for job in jobs for name in job.held)

    async def _sweep_strays(self) -> None:
        for _ in range(_SWEEPS):
            try:
                ended = await self._launcher.sweep_strays(
                    lambda: [job.id for job in self.state.jobs.values() if job.has_supervisor]
                )
            except ProcessesLeftError as error:
                # Those of one user that always begin others must not keep the jobs of all waiting.
                self._log.error("processes that belong to no running job do not end", error=str(error))
                continue
            if ended:
                self._log.warning("ended processes that belong to no running job", processes=ended)
            return

    async def _tick(self) -> None:
        for number, job_id in enumerate(self._next_looks()):
            if number % _JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)  # a release must not wait until the folders of all jobs have been looked at
            if self._is_undone(job_id) and self._launcher.is_done(job_id):
                self.apply(TrainerDone(job_id))
        self.apply(Ticked())

    def _next_looks(self) -> list[str]:
        """The jobs whose folders are looked at now, by turns where there are many."""
        if not self._looks:
            self._looks = deque(self.state.jobs)
        return [self._looks.popleft() for _ in range(min(_LOOKS_PER_TICK, len(self._looks)))]

    def _is_undone(self, job_id: str) -> bool:
        job = self.state.jobs.get(job_id)
        return job is not None and job.supervised and job.done_since is None

    async def _write_progress(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            names = self._progress.names
            parts = range(0, len(names), _NOTED_AT_ONCE)
            for first in parts:
                some = names[first : first + _NOTED_AT_ONCE]
                if (noted := self._progress.take_newer(self.state.jobs, some)) is not None:
                    self.apply(noted)
                # A release takes several turns of the loop: it must not wait for such a part in each of them.
                await asyncio.sleep(min(_NOTING_PAUSE_SECONDS, seconds / (2 * len(parts))))

    def _perform_recorded(self) -> None:
        commanded = JobTable.over(self.state.jobs).marked(JobMark.COMMANDED)
        self._effects.dispatch(required_effects(commanded, self._policy))


def _generation(step: ManagerStep) -> int | None:
    """Generation of the plan that a step has applied."""
    return step.result.state.generation if isinstance(step.stimulus, PlanReceived) else None
