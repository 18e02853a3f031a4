"""Keeps the last stimuli of a service's machine, and writes them to a file when the machine fails."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Generic

import structlog

from malletrain.common.files import make_private_folder, write_atomically
from malletrain.common.version import VERSION
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.kernel.recording import (
    Moment,
    RecordedFailure,
    RecordedMachine,
    Recording,
    ResultT,
    StateT,
    StimulusT,
    StoryLine,
    TimedStimulus,
    describe_failure,
    recording_to_json,
)

MIN_STIMULI = 1000
"""So many stimuli are kept at least, once there were as many."""
_SEGMENTS = 10
_MAX_FILES = 10

ReadStory = Callable[[str], Sequence[StoryLine]]


def _no_story(_: str) -> tuple[StoryLine, ...]:
    return ()


class FailureWriter(Generic[StateT, StimulusT, ResultT]):
    """Writes what led to failures of a machine to files, of which the newest are kept."""

    def __init__(
        self,
        folder: Path,
        machine: RecordedMachine[StateT, StimulusT, ResultT],
        validate: bool,
        read_story: ReadStory = _no_story,
    ) -> None:
        """
        Args:
            folder: Where failures are written; made when there is one.
            validate: Whether its invariants are checked after each stimulus.
            read_story: What has lately happened to a job, or to all jobs without one; the newest last.
        """
        self._folder = folder
        self._machine = machine
        self._validate = validate
        self._read_story = read_story
        self._log = structlog.get_logger(__name__)

    def write(self, error: Exception, state: StateT, stimuli: tuple[TimedStimulus[StimulusT], ...]) -> None:
        """Write a failure to a file, and tell it in the log. That there is no room for the file is told there, too.

        Args:
            error: The error, which gets a note of what has happened to the job that it names.
            state: The state before the first stimulus.
            stimuli: The stimuli, the last one with the error.
        """
        now = stimuli[-1].now.unix_seconds
        failure = describe_failure(self._machine, error, self._story(getattr(error, "job_id", "")), stimuli)
        error.add_note("\n".join(failure.story))
        time = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S.%f}Z"
        path = self._folder / f"{self._machine.file_prefix}-{time}.json"
        try:
            self._write(path, state, stimuli, failure)
        except (OSError, TypeError, ValueError) as problem:
            self._log.error("the stimuli can't be written", path=str(path), error=str(problem))
        self._log.error("the state machine failed", error=failure.message, story=failure.story, stimuli=str(path))

    def _story(self, job_id: str) -> Sequence[StoryLine]:
        try:
            return self._read_story(job_id)
        except DatabaseUnavailableError as problem:
            self._log.warning("what happened before can't be read", error=str(problem))
            return ()

    def _write(
        self, path: Path, state: StateT, stimuli: tuple[TimedStimulus[StimulusT], ...], failure: RecordedFailure
    ) -> None:
        machine = self._machine
        redacted = (TimedStimulus(timed.now, machine.redact_stimulus(timed.stimulus)) for timed in stimuli)
        recording = Recording(
            machine=machine,
            version=VERSION,
            validated=self._validate,
            state=machine.redact_state(state),
            stimuli=tuple(redacted),
            failure=failure,
        )
        make_private_folder(self._folder)
        write_atomically(path, json.dumps(recording_to_json(recording)), mode=0o600)
        for old in sorted(self._folder.glob(f"{machine.file_prefix}-*.json"))[:-_MAX_FILES]:
            old.unlink(missing_ok=True)


class FlightRecorder(Generic[StateT, StimulusT, ResultT]):
    """Runs a machine, checks its state if told to, and records what it was given.

    Stimuli are kept in segments, each with a copy of the state before it; the oldest segment goes as a whole.
    """

    def __init__(
        self,
        folder: Path,
        machine: RecordedMachine[StateT, StimulusT, ResultT],
        validate: bool,
        read_story: ReadStory = _no_story,
        min_stimuli: int = MIN_STIMULI,
    ) -> None:
        """
        Args:
            folder: Where failures are written; made when there is one.
            validate: Whether to check the invariants of the state after each stimulus.
            read_story: What has lately happened to a job, or to all jobs without one; the newest last.
            min_stimuli: How many stimuli are kept at least, once there were as many.
        """
        self.machine = machine
        self._validate = validate
        self._failures = FailureWriter(folder, machine, validate, read_story)
        self._min_stimuli = min_stimuli
        self._segments: deque[tuple[StateT, list[TimedStimulus[StimulusT]]]] = deque()

    def advance(self, state: StateT, stimulus: StimulusT, now: Moment) -> ResultT:
        """Have the machine handle a stimulus.

        Raises:
            Exception: it is refused, the machine has failed, or an invariant is broken. The stimuli are written to a
                file before, unless it is refused.
        """
        timed = TimedStimulus(now, stimulus)
        newest = self._newest_segment(state)
        try:
            result = self.machine.advance(state, stimulus, now)
            if self._validate:
                self.machine.check(state, result)
        except self.machine.refusals:
            raise
        except Exception as error:
            newest.append(timed)
            stimuli = tuple(chain.from_iterable(stimuli for _, stimuli in self._segments))
            self._failures.write(error, self._segments[0][0], stimuli)
            raise
        if self.machine.is_recorded(stimulus, result):
            newest.append(timed)
        return result

    def state_after(self, before: StateT, result: ResultT) -> StateT:
        """The state after a stimulus; a machine that changes in place is the same."""
        return self.machine.state_after(before, result)

    def forget_last(self) -> None:
        """The last stimulus was not applied after all: its change could not be stored."""
        self._segments[-1][1].pop()

    def _newest_segment(self, state: StateT) -> list[TimedStimulus[StimulusT]]:
        if not self._segments or len(self._segments[-1][1]) * _SEGMENTS >= self._min_stimuli:
            self._segments.append((self.machine.copy(state), []))
            if len(self._segments) > _SEGMENTS + 1:
                self._segments.popleft()
        return self._segments[-1][1]
