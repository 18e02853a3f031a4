"""JobManager's state machine as its recorder sees it, and what of it is written down. Pure."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import replace

from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult, advance
from malletrain.job_manager.machine.stimuli import PlanReceived, Stimulus, Submitted, SupervisorEnded, Ticked
from malletrain.job_manager.machine.validation import check_result
from malletrain.runtime.errors import NotFoundError, StalePlanError
from malletrain.runtime.kernel.recording import REDACTED, Moment, RecordedMachine, StoryLine


class RecordedJobManager(RecordedMachine[ManagerState, Stimulus, TransactionResult]):
    """How the flight recorder runs and checks JobManager's state machine."""

    service = "job_manager"
    file_prefix = "stimuli"
    state_type = ManagerState
    policy_type = ManagerPolicy
    stimulus_types = typing.get_args(Stimulus)
    refusals = (StalePlanError, NotFoundError)
    policy: ManagerPolicy

    def advance(self, state: ManagerState, stimulus: Stimulus, now: Moment) -> TransactionResult:
        """Apply a stimulus; see `malletrain.job_manager.machine.state_machine.advance`."""
        return advance(state, stimulus, now.unix_seconds, self.policy)

    def check(self, before: ManagerState, result: TransactionResult) -> None:
        """Check the state that a stimulus led to, and the way to it."""
        check_result(before, result)

    def state_after(self, before: ManagerState, result: TransactionResult) -> ManagerState:
        """The state after a stimulus."""
        del before
        return result.state

    def is_recorded(self, stimulus: Stimulus, result: TransactionResult) -> bool:
        """Ticks that changed nothing are left out."""
        return not isinstance(stimulus, Ticked) or bool(result.changed or result.events or result.usage)

    def redact_state(self, state: ManagerState) -> ManagerState:
        """A state without the commands of its jobs and the values of their environment variables."""
        return replace(state, jobs={name: _redact_job(job) for name, job in state.jobs.items()})

    def redact_stimulus(self, stimulus: Stimulus) -> Stimulus:
        """A stimulus without commands, values of environment variables and lines of logs."""
        match stimulus:
            case Submitted(specs):
                return replace(stimulus, specs=tuple(map(_redact_spec, specs)))
            case SupervisorEnded():
                return replace(stimulus, log_tail=tuple(REDACTED for _ in stimulus.log_tail))
            case _:
                return stimulus

    def concerns(self, stimulus: Stimulus, job_id: str) -> bool:
        """Whether a stimulus is about a job; plans are about all jobs that they name."""
        if isinstance(stimulus, PlanReceived):
            return any(name == job_id for name, _ in stimulus.assignments)
        return super().concerns(stimulus, job_id)

    def story_of(self, result: TransactionResult) -> tuple[StoryLine, ...]:
        """The new rows of the journal."""
        return journal_story(result.events)


def journal_story(events: Iterable[JobEvent]) -> tuple[StoryLine, ...]:
    """Rows of the journal, for people."""
    return tuple(StoryLine(event.unix_seconds, event.job_id, _row_text(event)) for event in events)


def _row_text(row: JobEvent) -> str:
    before = "" if row.from_state is None else f"{row.from_state} -> "
    where = " ".join(row.nodes) or "no nodes"
    first_line = row.reason.partition("\n")[0]
    return f"{row.job_id} {before}{row.to_state} on {where}: {row.reason_code}: {first_line}"


def _redact_job(job: Job) -> Job:
    return replace(job, spec=_redact_spec(job.spec))


def _redact_spec(spec: JobSpec) -> JobSpec:
    return replace(spec, command=(REDACTED,), environment=dict.fromkeys(spec.environment, REDACTED))
