"""Keeps what has lately happened to each job in Monitor's machine, and writes it to a file when the machine fails.

A copy of the whole machine costs too much: it holds up to 256 steps of each of thousands of jobs. But no job matters to
another one, and a failure is about one. So each job has a history of its own: the part of the machine that is about it,
copied once in a while, and the job's own batches and commands since then.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from malletrain.monitor.machine.machine import Effects, MonitorMachine
from malletrain.monitor.machine.recording import RecordedMonitor, advance_naming_job, parts_of
from malletrain.monitor.machine.stimuli import (
    BatchesReported,
    JobsForgotten,
    JobsKept,
    PublishDue,
    ScalesCommanded,
    Stimulus,
)
from malletrain.runtime.kernel.flight_recorder import FailureWriter
from malletrain.runtime.kernel.recording import Moment, TimedStimulus

_MIB = 1 << 20
_STATE_BYTES = 12_000
_BATCH_BYTES = 1_200
_RECORD_BYTES = 180
"""What is kept takes about so much, steps included that the machine itself has dropped by now."""


@dataclass(frozen=True)
class HistoryLimits:
    """How much is kept. A history that is full begins anew, with a copy of what is known of its job by then.

    Attributes:
        stimuli: Of a job.
        job_bytes: Of a job.
        all_bytes: Of all jobs. Where there are many, each gets an equal share; beyond that, the job goes of which
            nothing has been heard for longest.
        min_job_bytes: No job's share is smaller.
        publications: Histories that go further back than so many publications begin anew, or go.
    """

    stimuli: int = 64
    job_bytes: int = 4 * _MIB
    all_bytes: int = 48 * _MIB
    min_job_bytes: int = 24_000
    publications: int = 600


DEFAULT_LIMITS = HistoryLimits()


@dataclass
class _History:
    """What has lately happened to a job.

    Attributes:
        state: The machine with this job only, before that.
        published: How many publications there had been by then.
        size: Its size in bytes, about.
        stimuli: Each with the number of publications before it.
    """

    state: MonitorMachine
    published: int
    size: int = _STATE_BYTES
    stimuli: list[tuple[int, TimedStimulus[Stimulus]]] = field(default_factory=list)


class JobRecorder:
    """Runs Monitor's machine, checks its jobs if told to, and records what they were given."""

    def __init__(self, folder: Path, validate: bool, limits: HistoryLimits = DEFAULT_LIMITS) -> None:
        """
        Args:
            folder: Where failures are written; made when there is one.
            validate: Whether to check the invariants of the jobs that a stimulus changes.
            limits: How much is kept.
        """
        self._recorded = RecordedMonitor()
        self._failures = FailureWriter(folder, self._recorded, validate)
        self._validate = validate
        self._limits = limits
        self._histories: OrderedDict[str, _History] = OrderedDict()
        self._size = 0
        # Publications are about all jobs: they are kept once, and put in order with a job's stimuli for its file.
        self._publications: deque[Moment] = deque(maxlen=limits.publications)
        self._published = 0

    @property
    def size(self) -> int:
        """Size of all histories in bytes, about."""
        return self._size

    def advance(self, machine: MonitorMachine, stimulus: Stimulus, now: Moment) -> Effects:
        """Have the machine handle a stimulus.

        Raises:
            Exception: the machine has failed, or an invariant is broken. What led to it is written to a file before.
        """
        parts = parts_of(stimulus)
        for job_id, part in parts.items():
            if not isinstance(part, ScalesCommanded) or machine.trackers.is_news(*part.commands[0]):
                self._record(machine, job_id, TimedStimulus(now, part))
        try:
            effects = self._advance(machine, stimulus, now)
        except Exception as error:
            self._report(error, machine, parts, TimedStimulus(now, stimulus))
            raise
        match stimulus:
            case PublishDue():
                self._publications.append(now)
                self._published += 1
            case JobsForgotten():
                self._forget(*stimulus.job_ids)
            case JobsKept():
                # Of jobs without records it may have dropped what it knew.
                self._forget(*[job_id for job_id in self._histories if machine.trackers.find(job_id) is None])
        self._trim()  # not before: any of the stimulus's jobs may fail
        return effects

    def state_after(self, before: MonitorMachine, result: Effects) -> MonitorMachine:
        """The machine itself, which changes in place."""
        del result
        return before

    def forget_last(self) -> None:
        """Do nothing: Monitor refuses nothing that it has handled."""
        raise AssertionError("Monitor's machine has changed in place")

    def _advance(self, machine: MonitorMachine, stimulus: Stimulus, now: Moment) -> Effects:
        if not self._validate:
            return advance_naming_job(machine, stimulus, now)
        result = self._recorded.advance(machine, stimulus, now)
        self._recorded.check(machine, result)
        return result.effects

    def _record(self, machine: MonitorMachine, job_id: str, timed: TimedStimulus[Stimulus]) -> None:
        history, size = self._histories.get(job_id), _size_of(timed.stimulus)
        if history is None or self._is_full(history, size):
            self._forget(job_id)
            history = self._histories[job_id] = _History(machine.part((job_id,)), self._published)
            self._size += history.size
        self._histories.move_to_end(job_id)
        history.stimuli.append((self._published, timed))
        history.size += size
        self._size += size

    def _trim(self) -> None:
        """Drop what is too old, or too much."""
        while self._histories:
            job_id, history = next(iter(self._histories.items()))
            if self._size <= self._limits.all_bytes and not self._lacks_publications(history):
                return
            self._forget(job_id)

    def _is_full(self, history: _History, more: int) -> bool:
        limits = self._limits
        share = max(limits.min_job_bytes, limits.all_bytes // len(self._histories))
        return (
            len(history.stimuli) >= limits.stimuli
            or history.size + more > min(limits.job_bytes, share)
            or self._lacks_publications(history)
        )

    def _lacks_publications(self, history: _History) -> bool:
        return self._published - history.published > len(self._publications)

    def _forget(self, *job_ids: str) -> None:
        for job_id in job_ids:
            if (history := self._histories.pop(job_id, None)) is not None:
                self._size -= history.size

    def _report(
        self, error: Exception, machine: MonitorMachine, parts: Mapping[str, Stimulus], timed: TimedStimulus[Stimulus]
    ) -> None:
        job_id = str(getattr(error, "job_id", ""))
        last = timed._replace(stimulus=parts.get(job_id, timed.stimulus))
        # Without a history the best that there is: the state is no longer the one before the stimulus.
        state, stimuli = self.history(job_id) or (machine.part((job_id,)), [])
        if not stimuli or stimuli[-1].stimulus is not last.stimulus:
            stimuli.append(last)
        self._failures.write(error, state, tuple(stimuli))

    def history(self, job_id: str) -> tuple[MonitorMachine, list[TimedStimulus[Stimulus]]] | None:
        """What has lately happened to a job.

        Returns:
            The machine with this job only, and its stimuli after that, publications included; None where nothing is
            kept of it, or not all.
        """
        history = self._histories.get(job_id)
        if history is None or self._lacks_publications(history):
            return None
        first = self._published - len(self._publications)
        times = islice(self._publications, history.published - first, None)
        publications: list[tuple[int, TimedStimulus[Stimulus]]] = [
            (number, TimedStimulus(now, PublishDue())) for number, now in enumerate(times, start=history.published)
        ]
        # Sorting keeps the order of equals: what came after n publications stands before the next one.
        ordered = [*history.stimuli, *publications]
        ordered.sort(key=lambda entry: entry[0])
        return history.state, [timed for _, timed in ordered]


def _size_of(stimulus: Stimulus) -> int:
    if not isinstance(stimulus, BatchesReported):
        return _BATCH_BYTES
    return sum(_BATCH_BYTES + _RECORD_BYTES * len(batch.records) for batch in stimulus.batches)
