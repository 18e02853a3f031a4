"""Monitor's machine as its recorder and replays see it: with one job, since no job matters to another one. Pure."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace

from malletrain.monitor.machine.machine import Effects, MonitorMachine
from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.machine.stimuli import BatchesReported, JobsPlaced, ScalesCommanded, Stimulus
from malletrain.monitor.machine.validation import JobCounts, check_advance, counts_of, jobs_of
from malletrain.runtime.kernel.recording import Moment, RecordedMachine, name_job


@dataclass(frozen=True)
class Advanced:
    """What a stimulus has come to.

    Attributes:
        stimulus: The stimulus.
        before: What had been counted of its jobs before it.
        effects: What the machine wants done.
    """

    stimulus: Stimulus
    before: Mapping[str, JobCounts]
    effects: Effects


class RecordedMonitor(RecordedMachine[MonitorMachine, Stimulus, Advanced]):
    """Monitor's machine."""

    service = "monitor"
    file_prefix = "monitor-stimuli"
    state_type = MonitorMachine
    stimulus_types = typing.get_args(Stimulus)

    def advance(self, state: MonitorMachine, stimulus: Stimulus, now: Moment) -> Advanced:
        """Tell the machine; an error names the job that it is about."""
        before = counts_of(state, stimulus)
        return Advanced(stimulus, before, advance_naming_job(state, stimulus, now))

    def check(self, before: MonitorMachine, result: Advanced) -> None:
        """Check the jobs of the stimulus."""
        check_advance(before, result.before, result.stimulus, result.effects)

    def copy(self, state: MonitorMachine) -> MonitorMachine:
        """A copy with all jobs, of which a recording has one."""
        return state.part(state.trackers.job_ids)

    def redact_state(self, state: MonitorMachine) -> MonitorMachine:
        """Texts of errors may name files."""
        copied = self.copy(state)
        copied.trackers.drop_reasons()
        return copied

    def redact_stimulus(self, stimulus: Stimulus) -> Stimulus:
        """Texts of errors may name files."""
        if not isinstance(stimulus, BatchesReported):
            return stimulus
        return BatchesReported(tuple(map(_without_reason, stimulus.batches)))

    def describe(self, stimulus: Stimulus) -> str:
        """Batches without their records, which may be thousands."""
        if not isinstance(stimulus, BatchesReported):
            return super().describe(stimulus)
        told = (
            f"{len(batch.records)} records of {batch.reporter_id!r} from {batch.first_sequence}"
            for batch in stimulus.batches
        )
        return f"BatchesReported({', '.join(told)})"

    def concerns(self, stimulus: Stimulus, job_id: str) -> bool:
        """Whether a stimulus is about a job."""
        return job_id in jobs_of(stimulus)


def advance_naming_job(machine: MonitorMachine, stimulus: Stimulus, now: Moment) -> Effects:
    """Tell a machine; an error names the job that it is about."""
    try:
        return machine.advance(stimulus, now)
    except Exception as error:
        name_job(error, machine.trackers.at)
        raise


def parts_of(stimulus: Stimulus) -> dict[str, Stimulus]:
    """What batches and commands are to a machine with one job only, by job; nothing of other stimuli."""
    parts: dict[str, Stimulus] = {}
    match stimulus:
        case BatchesReported():
            batches: dict[str, list[ReportedBatch]] = {}
            for batch in stimulus.batches:
                batches.setdefault(batch.job_id, []).append(batch)
            parts = {job_id: BatchesReported(tuple(of_job)) for job_id, of_job in batches.items()}
        case ScalesCommanded():
            parts = {job_id: ScalesCommanded(((job_id, command),)) for job_id, command in stimulus.commands}
        case JobsPlaced():
            parts = {job_id: JobsPlaced(((job_id, span),)) for job_id, span in stimulus.spans}
    return parts


def _without_reason(batch: ReportedBatch) -> ReportedBatch:
    return batch if batch.saves is None else replace(batch, saves=replace(batch.saves, reason=""))
