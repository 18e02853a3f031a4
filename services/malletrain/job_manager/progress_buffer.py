"""The progress of jobs between two steps of the state machine. Pure.

Monitor reports each job's progress every second. Hardly any of it decides something. So it is kept here, and becomes
part of the state at intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.stimuli import Progressed, ProgressNoted


def decides(job: Job, seen: Progressed) -> bool:
    """Whether the progress of a job calls for a step at once: it reaches its target, stalls, or no longer stalls."""
    reaches_target = not job.target_reached and 0 < job.spec.target_samples <= seen.samples
    return reaches_target or (job.supervised and seen.stalled != (job.stalled_since is not None))


class ProgressBuffer:
    """Samples of jobs that are newer than those in the state."""

    def __init__(self) -> None:
        """Know nothing."""
        self._samples: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Identifiers of the jobs of which something is newer than the state."""
        return tuple(self._samples)

    def note(self, job: Job, seen: Progressed) -> Progressed | None:
        """Take over the progress of a job; returned where it calls for a step at once, which then contains it."""
        if decides(job, seen):
            self._samples.pop(job.id, None)
            return seen
        if seen.samples == job.samples:
            self._samples.pop(job.id, None)
        else:
            self._samples[job.id] = seen.samples
        return None

    def take(self, jobs: Mapping[str, Job], only: Iterable[str] | None = None) -> ProgressNoted | None:
        """What is newer than the state, as a stimulus, and forget it; None where there is nothing.

        Args:
            jobs: Jobs that have not ended. What is known of others is dropped.
            only: Identifiers of the jobs that are meant; None: all.
        """
        names = list(self._samples) if only is None else [name for name in only if name in self._samples]
        found = tuple((name, self._samples.pop(name)) for name in names)
        known = tuple((name, samples) for name, samples in found if name in jobs)
        return ProgressNoted(known) if known else None

    def shown(self, job: Job) -> Job:
        """A job with its newest samples."""
        samples = self._samples.get(job.id)
        return job if samples is None or job.state.final else replace(job, samples=samples)
