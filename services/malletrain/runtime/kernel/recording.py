"""Recordings of stimuli that led to a failure of a service's machine, and their replay. Pure.

A recording contains a state and the stimuli that followed it, with their times. A machine depends on nothing else, so
that a replay comes to the same failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from malletrain.runtime.errors import InvalidInputError, InvariantError
from malletrain.runtime.kernel.documents import copy_state, from_document, in_field, to_document

FORMAT = 1
"""Of the files; a higher one can't be read."""
REDACTED = "<redacted>"

_STORY_LINES = 10
_STORY_STIMULI = 5

StateT = TypeVar("StateT")
StimulusT = TypeVar("StimulusT")
ResultT = TypeVar("ResultT")
_FieldT = TypeVar("_FieldT")


class Moment(NamedTuple):
    """The time at which a stimulus is handled, by both clocks.

    Attributes:
        unix_seconds: Seconds since the epoch; such a clock may be set.
        monotonic: Seconds of a clock that never goes back.
    """

    unix_seconds: float
    monotonic: float = 0.0


_ENTRY_FIELDS = (*Moment._fields, "type")


class StoryLine(NamedTuple):
    """A line of what has happened to a job.

    Attributes:
        unix_seconds: When, in seconds since the epoch.
        job_id: The job.
        text: What, for people.
    """

    unix_seconds: float
    job_id: str
    text: str


class TimedStimulus(NamedTuple, Generic[StimulusT]):
    """A stimulus and when it was handled."""

    now: Moment
    stimulus: StimulusT


class RecordedMachine(ABC, Generic[StateT, StimulusT, ResultT]):
    """A machine as its recorder and replays see it. Each service has a class of its own.

    `StateT` is a state that never changes, or a machine that changes in place and that `copy` copies. It is written as
    a document, and so are the policy and the stimuli.

    Attributes:
        service: Name of the service, or of a part of it that has a machine of its own.
        file_prefix: What the names of its files begin with.
        state_type: `StateT`.
        policy_type: Type of the policy.
        stimulus_types: All types of stimuli.
        refusals: Errors by which it refuses a stimulus. They are no failures; the state stays as it was.
        policy: What an operator decides, if it is not part of the state.
    """

    service: ClassVar[str]
    file_prefix: ClassVar[str]
    state_type: ClassVar[type[Any]]
    policy_type: ClassVar[type[Any]] = NoneType
    stimulus_types: ClassVar[tuple[type[Any], ...]]
    refusals: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, policy: Any = None) -> None:
        self.policy = policy

    @abstractmethod
    def advance(self, state: StateT, stimulus: StimulusT, now: Moment) -> ResultT:
        """Handle a stimulus."""

    @abstractmethod
    def check(self, before: StateT, result: ResultT) -> None:
        """Check the invariants after a stimulus.

        Args:
            before: What `advance` was given; a machine that changes in place is as it is now.
            result: What it has returned.

        Raises:
            InvariantError: one is broken.
        """

    def copy(self, state: StateT) -> StateT:
        """A copy of a state that does not change with it."""
        return copy_state(state)

    def state_after(self, before: StateT, result: ResultT) -> StateT:
        """The state after a stimulus; a machine that changes in place is the same."""
        del result
        return before

    def is_recorded(self, stimulus: StimulusT, result: ResultT) -> bool:
        """Whether a replay needs a stimulus that has come to this result."""
        del stimulus, result
        return True

    def redact_state(self, state: StateT) -> StateT:
        """A state without secrets."""
        return state

    def redact_stimulus(self, stimulus: StimulusT) -> StimulusT:
        """A stimulus without secrets."""
        return stimulus

    def describe(self, stimulus: StimulusT) -> str:
        """A stimulus in one line, without secrets."""
        return str(self.redact_stimulus(stimulus))

    def concerns(self, stimulus: StimulusT, job_id: str) -> bool:
        """Whether a stimulus is about a job."""
        return getattr(stimulus, "job_id", "") == job_id

    def story_of(self, result: ResultT) -> Iterable[StoryLine]:
        """What a stimulus has done to jobs."""
        del result
        return ()


AnyMachine = RecordedMachine[Any, Any, Any]
AnyStimulus = TimedStimulus[Any]


@dataclass(frozen=True)
class RecordedFailure:
    """The error with which the last stimulus of a recording ended.

    Attributes:
        error: Name of its class.
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
        machine: The machine, with its policy.
        version: Version of MalleTrain that recorded it.
        validated: Whether the invariants of the state were checked after each stimulus.
        state: The state before the first stimulus.
        stimuli: The stimuli, the last one with the failure.
        failure: That failure.
    """

    machine: AnyMachine
    version: str
    validated: bool
    state: Any
    stimuli: tuple[AnyStimulus, ...]
    failure: RecordedFailure


@dataclass(frozen=True)
class RecordingReplay:
    """The result of a replay.

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
    machine, state = recording.machine, recording.machine.copy(recording.state)
    lines: list[StoryLine] = []
    violation = ""
    for number, timed in enumerate(recording.stimuli, start=1):
        try:
            result = machine.advance(state, timed.stimulus, timed.now)
            try:
                machine.check(state, result)
            except InvariantError as error:
                if recording.validated:
                    raise
                violation = violation or f"stimulus {number}: {error}"
        except machine.refusals:
            continue
        except Exception as error:  # noqa: BLE001 - any error is what is looked for
            failure = describe_failure(machine, error, lines, recording.stimuli[:number])
            return RecordingReplay(failure, number, violation)
        state = machine.state_after(state, result)
        lines += machine.story_of(result)
    return RecordingReplay(None, len(recording.stimuli), violation)


def reproduces(recording: Recording, replayed: RecordingReplay) -> bool:
    """Whether a replay came to the failure of the recording, at the same stimulus."""
    failure, expected = replayed.failure, recording.failure
    return (
        failure is not None
        and replayed.stimulus == len(recording.stimuli)
        and (failure.error, failure.message, failure.job_id) == (expected.error, expected.message, expected.job_id)
    )


def name_job(error: Exception, job_id: str) -> None:
    """Have an error name the job that it is about, unless it names one."""
    if job_id and not getattr(error, "job_id", ""):
        vars(error)["job_id"] = job_id


def describe_failure(
    machine: AnyMachine, error: Exception, lines: Sequence[StoryLine], stimuli: Sequence[AnyStimulus]
) -> RecordedFailure:
    """An error of a machine, with the story of the job that it names.

    Args:
        lines: What has happened to jobs, the newest last.
        stimuli: Stimuli, the one with the error last.
    """
    job_id = str(getattr(error, "job_id", ""))
    return RecordedFailure(type(error).__name__, str(error), job_id, tell_story(machine, job_id, lines, stimuli))


def tell_story(
    machine: AnyMachine, job_id: str, lines: Sequence[StoryLine], stimuli: Sequence[AnyStimulus]
) -> tuple[str, ...]:
    """What has happened to a job, and the last stimuli about it, one a line, in the order of time.

    Without a job, of all jobs.
    """
    rows = [line for line in lines if not job_id or line.job_id == job_id][-_STORY_LINES:]
    about = [timed for timed in stimuli if not job_id or machine.concerns(timed.stimulus, job_id)][-_STORY_STIMULI:]
    entries = [(row.unix_seconds, 1, row.text) for row in rows]
    entries += [(timed.now.unix_seconds, 0, f"<- {machine.describe(timed.stimulus)}") for timed in about]
    return tuple(f"{seconds:.3f} {text}" for seconds, _, text in sorted(entries))


def recording_to_json(recording: Recording) -> dict[str, Any]:
    """A recording as what JSON has."""
    return {
        "format": FORMAT,
        "service": recording.machine.service,
        "version": recording.version,
        "validated": recording.validated,
        "policy": to_document(recording.machine.policy),
        "state": to_document(recording.state),
        "stimuli": [
            {**now._asdict(), "type": type(stimulus).__name__, **to_document(stimulus)}
            for now, stimulus in recording.stimuli
        ],
        "failure": to_document(recording.failure),
    }


def recording_from_json(content: Any, machines: Mapping[str, type[AnyMachine]], default: str) -> Recording:
    """A recording from what `recording_to_json` made of it.

    Args:
        content: What JSON has.
        machines: The machines by the names of their services.
        default: The service of a recording that names none.

    Raises:
        InvalidInputError: it is something else.
    """
    if (number := _field(content, "format", int)) != FORMAT:
        raise InvalidInputError("format", str(FORMAT), number)
    service = _field(content, "service", str) if "service" in content else default
    if service not in machines:
        raise InvalidInputError("service", f"one of {', '.join(machines)}", service)
    kind = machines[service]
    return Recording(
        machine=kind(_field(content, "policy", kind.policy_type)),
        version=_field(content, "version", str),
        validated=_field(content, "validated", bool),
        state=_field(content, "state", kind.state_type),
        stimuli=tuple(_stimuli(kind, _field(content, "stimuli", list[dict[str, Any]]))),
        failure=_field(content, "failure", RecordedFailure),
    )


def _field(content: Any, name: str, kind: type[_FieldT]) -> _FieldT:
    if not isinstance(content, dict):
        raise InvalidInputError("", "an object", content)
    if name not in content:
        raise InvalidInputError(name, "a value, and there is none")
    try:
        return from_document(kind, content[name])
    except InvalidInputError as error:
        raise in_field(name, error) from None


def _stimuli(kind: type[AnyMachine], entries: list[dict[str, Any]]) -> Iterator[AnyStimulus]:
    types = {one.__name__: one for one in kind.stimulus_types}
    for index, entry in enumerate(entries):
        try:
            monotonic = _field(entry, "monotonic", float) if "monotonic" in entry else 0.0
            now = Moment(_field(entry, "unix_seconds", float), monotonic)
            if (name := _field(entry, "type", str)) not in types:
                raise InvalidInputError("type", f"one of {', '.join(types)}", name)
            fields = {name: value for name, value in entry.items() if name not in _ENTRY_FIELDS}
            yield TimedStimulus(now, from_document(types[name], fields))
        except InvalidInputError as error:
            raise in_field(f"stimuli[{index}]", error) from None
