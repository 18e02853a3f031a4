"""Simulated supervisors: they carry out JobManager's effects and report as real ones do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from malletrain.job_manager.machine.effects import Effect, ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.stimuli import (
    Completion,
    NodesReleased,
    Outcome,
    Stimulus,
    SupervisorEnded,
    SupervisorSeen,
)
from malletrain.simulator.services.event_queue import EventQueue


class TrainingModel(Protocol):
    """How trainings react to the commands of their supervisors. All calls are for the present instant."""

    def start(self, job_id: str, nodes: tuple[str, ...]) -> float:
        """The job's processes start on these nodes.

        Returns:
            When they will train, in seconds.
        """

    def rescale(self, job_id: str, nodes: tuple[str, ...]) -> float:
        """The job moves to these nodes.

        Returns:
            When it will train on them, in seconds.
        """

    def stop(self, job_id: str) -> None:
        """The job saves its state, and its processes end."""


@dataclass
class _Supervisor:
    """A supervisor; the attributes are those of `malletrain.job_manager.machine.stimuli.SupervisorSeen`."""

    job_id: str
    incarnation: int
    sequence: int
    nodes: tuple[str, ...]
    confirmed_sequence: int = 0
    confirmed: frozenset[str] = frozenset()
    occupied: set[str] = field(default_factory=set)

    def observe(self) -> SupervisorSeen:
        return SupervisorSeen(
            self.job_id,
            self.incarnation,
            self.sequence,
            self.confirmed_sequence,
            self.confirmed,
            frozenset(self.occupied),
        )


class SimulatedLauncher:
    """Carries out effects, with a simulated supervisor for each job.

    A supervisor takes commands at once. It confirms a scale when the stall of the rescale is over, it frees nodes that
    have left at once, and it ends at once when it is stopped.
    """

    def __init__(
        self,
        queue: EventQueue,
        training: TrainingModel,
        job: Callable[[str], Job],
        report: Callable[[Stimulus], object],
    ) -> None:
        """
        Args:
            report: Tells JobManager what supervisors say.
        """
        self._queue = queue
        self._training = training
        self._job = job
        self._report = report
        self._supervisors: dict[str, _Supervisor] = {}
        self._in_progress: set[Effect] = set()

    def dispatch(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects that are not in progress already."""
        for effect in effects:
            if effect not in self._in_progress:
                self._in_progress.add(effect)
                # Not at once: JobManager has to finish its transaction first.
                self._queue.at(self._queue.now, partial(self._carry_out, effect))

    def end(self, job_id: str, outcome: Outcome, message: str = "", completion: Completion | None = None) -> None:
        """The processes of a job end by themselves; nothing happens if it has none."""
        if job_id in self._supervisors:
            self._end(self._supervisors[job_id], outcome, message, completion)

    def lose_worker(self, job_id: str, node: str, seconds: float) -> None:
        """A worker dies and is started again by its supervisor.

        Args:
            job_id: The job, which has a supervisor and trains on the node.
            node: The worker's node.
            seconds: Seconds until it is back.
        """
        supervisor = self._supervisors[job_id]
        supervisor.confirmed -= {node}
        self._report(supervisor.observe())
        self._confirm_at(self._queue.now + seconds, supervisor)

    def _carry_out(self, effect: Effect) -> None:
        # It is over before JobManager hears of it: the same effect may be necessary again afterwards.
        self._in_progress.discard(effect)
        supervisor = self._supervisors.get(effect.job_id)
        if supervisor is not None and supervisor.incarnation != effect.incarnation:
            return
        match effect:
            case StartSupervisor() if supervisor is None:
                self._start(effect)
            case SetHosts() if supervisor is not None and effect.sequence > supervisor.sequence:
                self._set_hosts(supervisor, effect)
            case ReleaseHosts() if supervisor is not None:
                supervisor.occupied.difference_update(effect.nodes)
                supervisor.confirmed -= frozenset(effect.nodes)
                self._report(NodesReleased(effect.job_id, effect.incarnation, effect.nodes))
            case StopSupervisor() if supervisor is not None:
                self._training.stop(effect.job_id)
                self._end(supervisor, Outcome.STOPPED)

    def _start(self, effect: StartSupervisor) -> None:
        job = self._job(effect.job_id)
        if job.incarnation != effect.incarnation or job.stop is not None:
            self._report(SupervisorEnded(effect.job_id, effect.incarnation, Outcome.STOPPED, "", None, ()))
            return
        supervisor = _Supervisor(job.id, job.incarnation, job.sequence, job.commanded, occupied=set(job.commanded))
        self._supervisors[job.id] = supervisor
        self._confirm_at(self._training.start(job.id, job.commanded), supervisor)
        self._report(supervisor.observe())

    def _set_hosts(self, supervisor: _Supervisor, effect: SetHosts) -> None:
        supervisor.sequence, supervisor.nodes = effect.sequence, effect.nodes
        supervisor.occupied.update(effect.nodes)
        self._confirm_at(self._training.rescale(effect.job_id, effect.nodes), supervisor)
        self._report(supervisor.observe())

    def _confirm_at(self, time: float, supervisor: _Supervisor) -> None:
        self._queue.at(time, partial(self._confirm, supervisor, supervisor.sequence))

    def _confirm(self, supervisor: _Supervisor, sequence: int) -> None:
        if self._supervisors.get(supervisor.job_id) is not supervisor or supervisor.sequence != sequence:
            return
        supervisor.confirmed_sequence = sequence
        supervisor.confirmed = frozenset(supervisor.nodes)
        supervisor.occupied = set(supervisor.nodes)
        self._report(supervisor.observe())

    def _end(
        self, supervisor: _Supervisor, outcome: Outcome, message: str = "", completion: Completion | None = None
    ) -> None:
        del self._supervisors[supervisor.job_id]
        self._report(SupervisorEnded(supervisor.job_id, supervisor.incarnation, outcome, message, completion, ()))
