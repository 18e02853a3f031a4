"""The services engine of a replay: the services on a simulated clock, with progress from a scaling table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from math import ceil
from types import MappingProxyType

from malletrain.allocator.machine.cluster_cache import CachedProfile
from malletrain.allocator.problem.planner import JobCurve
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.jobs import job_id as numbered_id
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.stimuli import Completion, Outcome
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.model.job_state import JobState
from malletrain.model.job_value import LINEAR_VALUE
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.simulator.replay.arrivals import Arrivals, QueueEmpty
from malletrain.simulator.replay.fast_engine import Progress
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import STAY_HORIZON_S, ReplayOptions
from malletrain.simulator.replay.records import Decision, Decisions, JobRecord, ReplayResult, job_record, outcome_so_far
from malletrain.simulator.replay.running_job import RunningJob, admit, charges_of
from malletrain.simulator.services.event_queue import EARLY, EventQueue
from malletrain.simulator.services.simulated_services import OnPlan, ServicesOptions, SimulatedServices


@dataclass
class InstantFigures:
    """What happened to the trainings at one instant.

    Attributes:
        preempted: Jobs that lost nodes to the main scheduler.
        rescaled: Jobs whose scale changed by a plan.
        preemption_samples: Samples lost at once to preemption.
        invested_samples: What the rescales cost, in samples.
    """

    preempted: set[str] = field(default_factory=set)
    rescaled: set[str] = field(default_factory=set)
    preemption_samples: float = 0.0
    invested_samples: float = 0.0


class ReplayTraining:
    """The trainings of all admitted jobs: a `simulated_launcher.TrainingModel`.

    Attributes:
        running: Jobs that are admitted and not done, by JobManager's identifier.
        ended: Jobs that are done, in the order of their ends.
        figures: What has happened since `begin_instant`.
    """

    def __init__(
        self, queue: EventQueue, options: ReplayOptions, nodes: int, finish: Callable[[str, RunningJob], None]
    ) -> None:
        """
        Args:
            finish: Called when a job has processed its samples.
        """
        self.running: dict[str, RunningJob] = {}
        self.ended: list[JobRecord] = []
        self.figures = InstantFigures()
        self._ended_samples = 0.0
        self._queue = queue
        self._options = options
        self._nodes = nodes
        self._finish = finish
        self._charges = charges_of(options)
        self._before_loss: dict[str, int] = {}
        self._booting: dict[str, float] = {}

    def begin_instant(self) -> None:
        """Begin to collect the figures of another instant."""
        self.figures = InstantFigures()
        self._before_loss.clear()

    def samples_at(self, time: float) -> float:
        """Samples processed by all jobs up to a time, in seconds, at which nothing has changed yet."""
        return self._ended_samples + sum(run.done_at(time) for run in self.running.values())

    def admit(self, job_id: str, job: ReplayJob) -> None:
        """JobManager has admitted a job."""
        self.running[job_id] = admit(job, self._options, self._nodes, self._queue.now)

    def end(self, job_id: str) -> None:
        """A job has trained all its samples."""
        run = self.running.pop(job_id)
        self._booting.pop(job_id, None)
        run.settle(self._queue.now)
        run.done = run.job.samples
        run.ended_s = self._queue.now
        self._ended_samples += run.done
        self.ended.append(job_record(run))

    def lose(self, nodes: Iterable[str]) -> None:
        """Nodes leave, with the workers on them. JobManager hears of it right afterwards."""
        lost_nodes = frozenset(nodes)
        for job_id, run in self.running.items():
            if lost := lost_nodes & run.nodes:
                self._before_loss[job_id] = run.count
                run.settle(self._queue.now)
                run.preemptions += 1
                self.figures.preemption_samples += self._charges.preempt(run, self._queue.now)
                run.predict()
                run.nodes -= lost
                self.figures.preempted.add(job_id)

    def start(self, job_id: str, nodes: tuple[str, ...]) -> float:
        """See `TrainingModel`."""
        return self._move(job_id, nodes, self.running[job_id].count)

    def rescale(self, job_id: str, nodes: tuple[str, ...]) -> float:
        """See `TrainingModel`."""
        run = self.running[job_id]
        self._booting.pop(job_id, None)
        if run.job.boot_s and 0 < run.count < len(nodes) and job_id not in self._before_loss:
            return self._boot(run, job_id, nodes)
        return self._move(job_id, nodes, run.count)

    def stop(self, job_id: str) -> None:
        """See `TrainingModel`."""
        self._booting.pop(job_id, None)
        if job_id in self.running:
            self._move(job_id, (), self.running[job_id].count)

    def _boot(self, run: RunningJob, job_id: str, nodes: tuple[str, ...]) -> float:
        """Train on at the present rate while new workers boot. The growth follows, unless a command comes before."""
        held, ready = run.count, self._queue.now + run.job.boot_s
        run.settle(self._queue.now)
        run.nodes = set(nodes)
        self._booting[job_id] = ready
        self._queue.at(ready, partial(self._end_boot, job_id, ready, nodes, held))
        return max(run.stalled_until_s, ready + self._charges.growth_stall_s(run.job))

    def _end_boot(self, job_id: str, ready: float, nodes: tuple[str, ...], held: int) -> None:
        if self._booting.get(job_id) == ready:
            del self._booting[job_id]
            self._move(job_id, nodes, held)

    def _move(self, job_id: str, nodes: tuple[str, ...], held: int) -> float:
        """Bring a job from the nodes that it held to these, and charge for it."""
        now, run = self._queue.now, self.running[job_id]
        run.settle(now)
        run.nodes = set(nodes)
        run.rate = run.speeds[run.count]
        before = self._before_loss.pop(job_id, held)
        self.figures.invested_samples += self._charges.rescale(run, before, held, now)
        if run.count != held:
            run.rescales += 1
            self.figures.rescaled.add(job_id)
        if run.started_s is None and run.count:
            run.started_s = now
        run.predict()
        if run.finish_s < self._options.duration_s:
            self._queue.at(run.finish_s, partial(self._check_finished, job_id), EARLY)
        return max(now, run.stalled_until_s)

    def _check_finished(self, job_id: str) -> None:
        run = self.running.get(job_id)
        # A later rescale may have moved the end.
        if run is not None and run.finish_s <= self._queue.now:
            self._finish(job_id, run)


_WAITING_JOBS = 2
"""Most jobs per place that wait in JobManager's queue. Later ones are submitted when places become free: the order is
the same, and a long queue would only make every transaction slower. Where it matters whose job is whose, or jobs ask
for burst buffer, the order depends on all jobs that wait, and none is kept back; nor where deadlines count from the
submission."""
_NOT_KNOWN: Mapping[str, NodeFacts] = MappingProxyType({})
_DEADLINE_STALLS = 2.0
"""JobManager's deadline of a rescale is at least this many times the job set's longest stall."""


def run_services_replay(
    events: Sequence[NodeEvent],
    nodes: Sequence[str],
    jobs: Sequence[ReplayJob],
    options: ReplayOptions,
    progress: Progress = lambda _: None,
    settings: ServicesOptions | None = None,
    on_plan: OnPlan = lambda *_: None,
    facts: Mapping[str, NodeFacts] = _NOT_KNOWN,
) -> ReplayResult:
    """Replay elastic jobs on the idle nodes of a trace, as `fast_engine.run_replay` does.

    The result has a row for every instant at which nodes joined or left, the scale of a job changed, or a job was
    admitted or ended.

    Args:
        events: Changes of the idle set in the order of time.
        nodes: All nodes, in the trace's order.
        jobs: Jobs in the order of submission.
        options: Options of the replay.
        progress: Told the simulated second after every row.
        settings: Settings of the services; None: those of `services_options`.
        on_plan: Called with the simulated second, each plan and its answer.
        facts: What nodes are, of which that is known: their pools, and what jobs need of them.

    Returns:
        Every row and every job that was admitted. The same arguments give the same result.
    """
    settings = settings or services_options(options, jobs)
    return _ServicesReplay(events, nodes, jobs, options, settings, on_plan, facts).run(progress)


def services_options(options: ReplayOptions, jobs: Sequence[ReplayJob]) -> ServicesOptions:
    """The services' settings for a replay; what the options do not say is as by default."""
    max_stall = max((max(job.scale_up_s, job.scale_down_s) for job in jobs), default=0.0)
    defaults = JobManagerSettings()
    return ServicesOptions(
        allocator=AllocatorSettings(
            forward_seconds=options.forward_s,
            forward_policy=options.forward_policy,
            forward_share=options.forward_share,
            cost_model=options.cost_model,
            objective_metric=options.metric,
            max_nodes_per_owner=options.max_nodes_per_owner,
        ),
        job_manager=JobManagerSettings(
            max_parallel=options.max_parallel,
            max_parallel_per_owner=options.max_parallel_per_owner,
            fair_share_half_life_seconds=options.fair_share_half_life_s,
            burst_buffer_gb=options.burst_buffer_gb,
            admission=options.admission,
            window=options.window,
            starvation_bound=options.starvation_bound,
            rescale_deadline_seconds=max(defaults.rescale_deadline_seconds, _DEADLINE_STALLS * max_stall),
        ),
        stay_horizon_seconds=STAY_HORIZON_S,
    )


class _ServicesReplay:
    def __init__(
        self,
        events: Sequence[NodeEvent],
        nodes: Sequence[str],
        jobs: Sequence[ReplayJob],
        options: ReplayOptions,
        settings: ServicesOptions,
        on_plan: OnPlan,
        facts: Mapping[str, NodeFacts],
    ) -> None:
        self._events = events
        self._arrivals = Arrivals(jobs, options)
        self._options = options
        self._queue = EventQueue()
        self._training = ReplayTraining(self._queue, options, len(nodes), self._finish)
        self._services = SimulatedServices(
            self._queue,
            self._training,
            settings,
            nodes=nodes,
            facts=facts,
            record=self._record,
            on_plan=on_plan,
            samples=self._samples,
        )
        self._by_id: dict[str, ReplayJob] = {}
        self._submitted = self._waiting = 0
        shares = options.shares([job.owner for job in jobs])
        asking = not options.free and any(job.burst_buffer_gb for job in jobs)
        all_matter = shares or asking or any(job.value.deadline for job in jobs)
        self._room = len(jobs) if all_matter else _WAITING_JOBS * options.max_parallel
        self._idle: dict[str, float] = {}
        self._event: NodeEvent | None = None
        self._admitted = self._ended = 0
        self._queue_empty: QueueEmpty | None = None
        self._decisions = Decisions()

    def run(self, progress: Progress) -> ReplayResult:
        for event in self._events:
            self._queue.at(event.time_s, partial(self._change_nodes, event))
        self._submit_later()
        while self._queue.next_time < self._options.duration_s:
            before = self._training.samples_at(self._queue.next_time)
            self._training.begin_instant()
            self._event, self._admitted, self._ended = None, 0, 0
            self._queue.run_instant()
            self._note_queue()
            if self._add_row(before):
                progress(self._queue.now)
        return self._result()

    def _change_nodes(self, event: NodeEvent) -> None:
        self._event = event
        for node in event.left:
            del self._idle[node]
        self._idle.update(event.joined)
        self._training.lose(event.left)
        self._services.set_idle(self._idle)

    def _samples(self, jobs: Sequence[str]) -> dict[str, int]:
        running, now = self._training.running, self._queue.now
        return {job_id: int(running[job_id].done_at(now)) for job_id in jobs if job_id in running}

    def _note_queue(self) -> None:
        """Note when the queue stays empty from then on."""
        running = self._training.running.values()
        if self._queue_empty is None and self._arrivals.is_empty(self._waiting, len(running)):
            now = self._queue.now
            self._queue_empty = QueueEmpty(now, outcome_so_far(self._training.ended, running, now))

    def _submit_later(self) -> None:
        if not self._arrivals.over:
            self._queue.at(max(self._queue.now, self._arrivals.next_submit_s), self._submit)

    def _submit(self) -> None:
        first, room = self._submitted, self._room - self._waiting
        batch = list(islice(self._arrivals.take_submitted(self._queue.now), room))
        if not batch:
            return
        self._submitted += len(batch)
        self._waiting += len(batch)
        self._by_id.update((numbered_id(number), job) for number, job in enumerate(batch, first + 1))
        for owner, jobs in groupby(batch, lambda job: job.owner):
            self._services.submit([_spec(job) for job in jobs], owner)
        self._services.set_profiles(
            [
                CachedProfile(numbered_id(number), JobCurve(job.curve, job.scale_up_s, job.scale_down_s))
                for number, job in enumerate(batch, first + 1)
            ]
        )
        if len(batch) < room:
            self._submit_later()

    def _finish(self, identifier: str, run: RunningJob) -> None:
        """The trainer says that it is done, and its processes end."""
        self._services.launcher.end(identifier, Outcome.EXITED, completion=Completion(int(run.job.samples)))

    def _record(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if event.from_state is JobState.QUEUED and event.to_state is JobState.WAITING:
                self._training.admit(event.job_id, self._by_id.pop(event.job_id))
                self._admitted += 1
                self._waiting -= 1
            elif event.to_state is JobState.COMPLETED:
                self._training.end(event.job_id)
                self._ended += 1
                self._submit_later()

    def _add_row(self, before: float) -> bool:
        figures, event, running = self._training.figures, self._event, self._training.running.values()
        if event is None and not (self._admitted or self._ended or figures.rescaled):
            return False
        self._decisions.add(
            Decision(
                time_s=self._queue.now,
                node_event=event is not None,
                joined=len(event.joined) if event else 0,
                left=len(event.left) if event else 0,
                admitted=self._admitted,
                ended=self._ended,
                preempted=len(figures.preempted),
                rescaled=len(figures.rescaled),
                pool=len(self._idle),
                used=sum(run.count for run in running),
                active=len(running),
                running=sum(run.rate > 0 for run in running),
                rate=sum(run.rate for run in running),
                preemption_samples=figures.preemption_samples,
                invested_samples=figures.invested_samples,
                samples_before=before,
                samples=self._training.samples_at(self._queue.now),
            )
        )
        return True

    def _result(self) -> ReplayResult:
        for run in self._training.running.values():
            run.settle(self._options.duration_s)
            run.done = min(run.done, run.job.samples)
        records = [*self._training.ended, *map(job_record, self._training.running.values())]
        return ReplayResult(self._decisions.columns(), tuple(records), len(self._events), self._queue_empty)


def _spec(job: ReplayJob) -> JobSpec:
    """What is submitted. Jobs of one model have one program, so that growths of one tell how long others boot."""
    program = (job.model or "replay",)
    spec = JobSpec(
        name=job.id,
        command=program,
        working_directory="/",
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        burst_buffer_gb=job.burst_buffer_gb,
        needs=job.needs,
    )
    return spec if job.value == LINEAR_VALUE else replace(spec, value=job.value, target_samples=ceil(job.samples))
