"""Profiler's machine as its recorder and replays see it."""

from __future__ import annotations

import typing

from malletrain.profiler.machine.machine import Effects, ProfilerMachine
from malletrain.profiler.machine.stimuli import JobsReported, ReadRequested, ScalingReported, Stimulus
from malletrain.profiler.machine.validation import validate_curves, validate_runs
from malletrain.runtime.errors import InvalidInputError, NotFoundError
from malletrain.runtime.kernel.recording import Moment, RecordedMachine


class RecordedProfiler(RecordedMachine[ProfilerMachine, Stimulus, Effects]):
    """Profiler's machine."""

    service = "profiler"
    file_prefix = "profiler-stimuli"
    state_type = ProfilerMachine
    stimulus_types = typing.get_args(Stimulus)
    refusals = (InvalidInputError, NotFoundError)

    def advance(self, state: ProfilerMachine, stimulus: Stimulus, now: Moment) -> Effects:
        """Tell the machine."""
        return state.advance(stimulus, now)

    def check(self, before: ProfilerMachine, result: Effects) -> None:
        """Check curves and runs, unless something was reported that they do not show yet."""
        del result
        if before.ready and not before.has_news:
            validate_curves(before.curves)
            if before.cluster is not None:
                validate_runs(before.runs, before.cluster)

    def is_recorded(self, stimulus: Stimulus, result: Effects) -> bool:
        """Readers for whom there was no news are left out."""
        return bool(result) or not isinstance(stimulus, ReadRequested)

    def concerns(self, stimulus: Stimulus, job_id: str) -> bool:
        """Whether a stimulus is about a job."""
        match stimulus:
            case JobsReported():
                return any(job.job_id == job_id for job in stimulus.jobs)
            case ScalingReported():
                return any(name == job_id for name, _ in stimulus.records)
            case _:
                return super().concerns(stimulus, job_id)
