"""Recordings of stimuli that led to a failure, and their replay through the state machine. Pure.

A recording contains a state and the stimuli that followed it, with their times. The state machine depends on nothing
else, so that a replay comes to the same failure.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from malletrain.job_manager.codec import from_json, to_json
from malletrain.job_manager.jobs import Job, JobSpec
from malletrain.job_manager.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.state_machine import advance
from malletrain.job_manager.stimuli import PlanReceived, Stimulus, Submitted, SupervisorEnded
from malletrain.job_manager.validation import StateInvariantError, check_result
from malletrain.runtime.errors import NotFoundError, StalePlanError

FORMAT = 1
"""Of the files; a higher one can't be read."""
REFUSALS = (StalePlanError, NotFoundError)
"""Errors by which the state machine refuses a stimulus. They are no failures; the state stays as it was."""
REDACTED = "<redacted>"

_STIMULI: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Stimulus)}
_STORY_ROWS = 10
_STORY_STIMULI = 5


@dataclass(frozen=True)
class TimedStimulus:
    """A stimulus and when it was applied, in seconds since the epoch."""

    unix_seconds: float
    stimulus: Stimulus


@dataclass(frozen=True)
class RecordedFailure:
    """The error with which the last stimulus of a recording ended.

    Attributes:
        error: Name of its class.
        message: Its message.
        job_id: The job that it names; empty if it names none.
        story: What happened to that job, the newest last; see `tell_story`.
    """

    error: str
    message: str
    job_id: str
    story: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """Everything that a replay needs.

    Attributes:
        version: Version of MalleTrain that recorded it.
        validated: Whether the invariants of the state were checked after each stimulus.
        policy: JobManager's policy.
        state: The state before the first stimulus.
        stimuli: The stimuli, the last one with the failure.
        failure: That failure.
    """

    version: str
    validated: bool
    policy: ManagerPolicy
    state: ManagerState
    stimuli: tuple[TimedStimulus, ...]
    failure: RecordedFailure


@dataclass(frozen=True)
class RecordingReplay:
    """What a replay came to.

    Attributes:
        failure: The failure; None if there was none.
        stimulus: Number of the stimulus that failed, from 1; the number of stimuli if none did.
        first_violation: The first broken invariant, as "stimulus 17: …", if the recording was made without checks;
            empty otherwise.
    """

    failure: RecordedFailure | None
    stimulus: int
    first_violation: str = ""


def replay_recording(recording: Recording) -> RecordingReplay:
    """Apply the stimuli of a recording until one fails."""
    state = recording.state
    events: list[JobEvent] = []
    violation = ""
    for number, timed in enumerate(recording.stimuli, start=1):
        try:
            result = advance(state, timed.stimulus, timed.unix_seconds, recording.policy)
            try:
                check_result(state, result)
            except StateInvariantError as error:
                if recording.validated:
                    raise
                violation = violation or f"stimulus {number}: {error}"
        except REFUSALS:
            continue
        except Exception as error:  # noqa: BLE001 - any error is what is looked for
            failure = describe_failure(error, events, recording.stimuli[:number])
            return RecordingReplay(failure, number, violation)
        state = result.state
        events += result.events
    return RecordingReplay(None, len(recording.stimuli), violation)


def reproduces(recording: Recording, replayed: RecordingReplay) -> bool:
    """Whether a replay came to the failure of the recording, at the same stimulus."""
    found, expected = replayed.failure, recording.failure
    return (
        found is not None
        and replayed.stimulus == len(recording.stimuli)
        and (found.error, found.message, found.job_id) == (expected.error, expected.message, expected.job_id)
    )


def describe_failure(error: Exception, events: Sequence[JobEvent], stimuli: Sequence[TimedStimulus]) -> RecordedFailure:
    """An error of the state machine, with the story of the job that it names.

    Args:
        error: The error.
        events: Rows of the journal, the newest last.
        stimuli: Stimuli, the one with the error last.
    """
    job_id = str(getattr(error, "job_id", ""))
    return RecordedFailure(type(error).__name__, str(error), job_id, tell_story(job_id, events, stimuli))


def tell_story(job_id: str, events: Sequence[JobEvent], stimuli: Sequence[TimedStimulus]) -> tuple[str, ...]:
    """The last rows of the journal and the last stimuli about a job, one a line, in the order of time.

    Without a job, of all jobs.
    """
    rows = [event for event in events if not job_id or event.job_id == job_id][-_STORY_ROWS:]
    about = [timed for timed in stimuli if not job_id or _concerns(timed.stimulus, job_id)][-_STORY_STIMULI:]
    lines = [(row.unix_seconds, 1, _row_line(row)) for row in rows]
    lines += [(timed.unix_seconds, 0, f"<- {redact_stimulus(timed.stimulus)}") for timed in about]
    return tuple(f"{seconds:.3f} {text}" for seconds, _, text in sorted(lines))


def _concerns(stimulus: Stimulus, job_id: str) -> bool:
    if isinstance(stimulus, PlanReceived):
        return any(name == job_id for name, _ in stimulus.assignments)
    return getattr(stimulus, "job_id", "") == job_id


def _row_line(row: JobEvent) -> str:
    before = "" if row.from_state is None else f"{row.from_state} -> "
    where = " ".join(row.nodes) or "no nodes"
    first_line = row.reason.partition("\n")[0]
    return f"{row.job_id} {before}{row.to_state} on {where}: {row.reason_code}: {first_line}"


def redact_state(state: ManagerState) -> ManagerState:
    """A state without the commands of its jobs and the values of their environment variables."""
    return replace(state, jobs={name: _redact_job(job) for name, job in state.jobs.items()})


def redact_stimulus(stimulus: Stimulus) -> Stimulus:
    """A stimulus without commands, values of environment variables and lines of logs."""
    match stimulus:
        case Submitted(specs):
            return replace(stimulus, specs=tuple(map(_redact_spec, specs)))
        case SupervisorEnded():
            return replace(stimulus, log_tail=tuple(REDACTED for _ in stimulus.log_tail))
        case _:
            return stimulus


def _redact_job(job: Job) -> Job:
    return replace(job, spec=_redact_spec(job.spec))


def _redact_spec(spec: JobSpec) -> JobSpec:
    return replace(spec, command=(REDACTED,), environment=dict.fromkeys(spec.environment, REDACTED))


def recording_to_json(recording: Recording) -> dict[str, Any]:
    """A recording as what JSON has."""
    fields = {field.name: to_json(getattr(recording, field.name)) for field in dataclasses.fields(recording)}
    fields["stimuli"] = [
        {"unix_seconds": timed.unix_seconds, "type": type(timed.stimulus).__name__, **to_json(timed.stimulus)}
        for timed in recording.stimuli
    ]
    return {"format": FORMAT, **fields}


def recording_from_json(content: dict[str, Any]) -> Recording:
    """A recording from what `recording_to_json` made of it.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}: expected {FORMAT}")
    return Recording(
        version=content["version"],
        validated=content["validated"],
        policy=from_json(ManagerPolicy, content["policy"]),
        state=from_json(ManagerState, content["state"]),
        stimuli=tuple(_timed_stimuli(content["stimuli"])),
        failure=from_json(RecordedFailure, content["failure"]),
    )


def _timed_stimuli(entries: Iterable[dict[str, Any]]) -> Iterable[TimedStimulus]:
    for entry in entries:
        fields = dict(entry)
        unix_seconds, kind = fields.pop("unix_seconds"), _STIMULI[fields.pop("type")]
        yield TimedStimulus(unix_seconds, from_json(kind, fields))
