"""Keeps the last stimuli of JobManager, and writes them to a file when the state machine fails."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import structlog

from malletrain.common.files import make_private_folder, write_atomically
from malletrain.common.version import VERSION
from malletrain.job_manager.recording import (
    REFUSALS,
    RecordedFailure,
    Recording,
    TimedStimulus,
    describe_failure,
    recording_to_json,
    redact_state,
    redact_stimulus,
)
from malletrain.job_manager.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.state_machine import TransactionResult, advance
from malletrain.job_manager.stimuli import Stimulus, Ticked
from malletrain.job_manager.validation import check_result
from malletrain.runtime.database.errors import DatabaseUnavailableError

LEAST_STIMULI = 1000
"""So many stimuli are kept at least, once there were as many."""
_STIMULI_PER_SNAPSHOT = 100
_MOST_FILES = 10

ReadJournal = Callable[[str], Sequence[JobEvent]]


class FlightRecorder:
    """Runs the state machine, checks its state if told to, and records what it was given.

    Snapshots are kept rather than computed: states are immutable and share what did not change. Ticks that changed
    nothing are left out, since a replay does not need them.

    Attributes:
        policy: JobManager's policy.
    """

    def __init__(self, folder: Path, policy: ManagerPolicy, validate: bool, read_journal: ReadJournal) -> None:
        """Record nothing yet.

        Args:
            folder: Where failures are written; made when there is one.
            policy: JobManager's policy.
            validate: Whether to check the invariants of the state after each stimulus.
            read_journal: The last rows of the journal of a job, or of all jobs without one; the newest last.
        """
        self._folder = folder
        self.policy = policy
        self._validate = validate
        self._segments: deque[tuple[ManagerState, list[TimedStimulus]]] = deque()
        self._read_journal = read_journal
        self._log = structlog.get_logger(__name__)

    def advance(self, state: ManagerState, stimulus: Stimulus, now: float) -> TransactionResult:
        """Apply a stimulus; see `malletrain.job_manager.state_machine.advance`.

        Raises:
            StalePlanError, NotFoundError: the stimulus is refused.
            Exception: the state machine failed, or an invariant is broken. The stimuli are written to a file before.
        """
        try:
            result = advance(state, stimulus, now, self.policy)
            if self._validate:
                check_result(state, result)
        except REFUSALS:
            raise
        except Exception as error:
            self._record(state, TimedStimulus(now, stimulus))
            self._report(error, now)
            raise
        if not isinstance(stimulus, Ticked) or result.changed or result.events:
            self._record(state, TimedStimulus(now, stimulus))
        return result

    def forget_last(self) -> None:
        """The last stimulus was not applied after all: its change could not be stored."""
        self._segments[-1][1].pop()

    def _record(self, state: ManagerState, timed: TimedStimulus) -> None:
        if not self._segments or len(self._segments[-1][1]) >= _STIMULI_PER_SNAPSHOT:
            self._segments.append((state, []))
        self._segments[-1][1].append(timed)
        if sum(len(stimuli) for _, stimuli in self._segments) - len(self._segments[0][1]) >= LEAST_STIMULI:
            self._segments.popleft()

    def _report(self, error: Exception, now: float) -> None:
        stimuli = list(chain.from_iterable(stimuli for _, stimuli in self._segments))
        failure = describe_failure(error, self._journal(getattr(error, "job_id", "")), stimuli)
        error.add_note("\n".join(failure.story))
        path = self._folder / f"stimuli-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S.%f}Z.json"
        try:
            self._write(path, stimuli, failure)
        except OSError as problem:
            self._log.error("the stimuli can't be written", path=str(path), error=str(problem))
        self._log.error("the state machine failed", error=failure.message, story=failure.story, stimuli=str(path))

    def _journal(self, job_id: str) -> Sequence[JobEvent]:
        try:
            return self._read_journal(job_id)
        except DatabaseUnavailableError as problem:
            self._log.warning("the journal can't be read", error=str(problem))
            return ()

    def _write(self, path: Path, stimuli: list[TimedStimulus], failure: RecordedFailure) -> None:
        redacted = (TimedStimulus(timed.unix_seconds, redact_stimulus(timed.stimulus)) for timed in stimuli)
        recording = Recording(
            version=VERSION,
            validated=self._validate,
            policy=self.policy,
            state=redact_state(self._segments[0][0]),
            stimuli=tuple(redacted),
            failure=failure,
        )
        make_private_folder(self._folder)
        write_atomically(path, json.dumps(recording_to_json(recording), indent=1), mode=0o600)
        for old in sorted(self._folder.glob("stimuli-*.json"))[:-_MOST_FILES]:
            old.unlink(missing_ok=True)
