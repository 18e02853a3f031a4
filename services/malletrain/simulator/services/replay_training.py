"""Trainings in a replay by services: progress from a scaling table, stalls and losses as in the fast engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from malletrain.simulator.replay.charges import charges_of
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import JobRecord, job_record
from malletrain.simulator.replay.running_job import RunningJob, admit
from malletrain.simulator.services.event_queue import EARLY, EventQueue


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
        """Begin without jobs.

        Args:
            queue: The simulated clock.
            options: Options of the replay.
            nodes: Number of all nodes of the trace.
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
        """A job is done."""
        run = self.running.pop(job_id)
        self._booting.pop(job_id, None)
        run.settle(self._queue.now)
        run.done = run.job.samples
        run.ended_s = self._queue.now
        self._ended_samples += run.done
        self.ended.append(job_record(run))

    def lose(self, nodes: Iterable[str]) -> None:
        """Nodes leave, with the workers on them. JobManager hears of it right afterwards."""
        left = frozenset(nodes)
        for job_id, run in self.running.items():
            if lost := left & run.nodes:
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
