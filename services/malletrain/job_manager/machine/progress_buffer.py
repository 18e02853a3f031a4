"""The progress of jobs between two steps of the state machine, and after their end. Pure.

Monitor reports each job's progress every second. Hardly any of it decides something. So it is kept here, and becomes
part of the state at intervals.

JobManager asks Monitor once for the samples of a job that ends, and does not keep its nodes waiting for the answer.
While Monitor is away there is none; then the last batches come with Monitor's next stream of progress. Where a trainer
has said that it is done, its own count stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from malletrain.job_manager.machine.hangs import is_long
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.stimuli import Progressed, ProgressNoted
from malletrain.job_manager.machine.transitions import JobReason

MAX_ENDED_JOBS = 500


def decides(job: Job, seen: Progressed) -> bool:
    """Whether the progress of a job calls for a step at once.

    It reaches its target, falls silent or goes on, its saves begin or cease to fail, or it is news whether its trainer
    tells its position.
    """
    reaches_target = not job.target_reached and 0 < job.spec.target_samples <= seen.samples
    saves_news = seen.save_error is not None and seen.save_error != job.save_error
    silent = is_long(job, seen)
    phase = seen.phase if silent else ""
    changes = phase != job.phase or (silent and not phase) != (job.stalled_since is not None)
    return reaches_target or saves_news or (job.supervised and changes) or seen.positions_known != job.positions_known


class ProgressBuffer:
    """Samples of jobs that are newer than those in the state."""

    def __init__(self) -> None:
        self._samples: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Identifiers of the jobs of which something is newer than the state."""
        return tuple(self._samples)

    def note_progress(self, job: Job, seen: Progressed) -> Progressed | None:
        """Take over the progress of a job; returned where it calls for a step at once, which then contains it."""
        if decides(job, seen):
            self._samples.pop(job.id, None)
            return seen
        if seen.samples == job.samples:
            self._samples.pop(job.id, None)
        else:
            self._samples[job.id] = seen.samples
        return None

    def take_newer(self, jobs: Mapping[str, Job], only: Iterable[str] | None = None) -> ProgressNoted | None:
        """Remove the buffered samples, and return them as a stimulus; None where there are none.

        Args:
            jobs: Jobs that have not ended. Samples of others are dropped.
            only: Identifiers of the jobs that are meant; None: all.
        """
        names = list(self._samples) if only is None else [name for name in only if name in self._samples]
        buffered = tuple((name, self._samples.pop(name)) for name in names)
        known = tuple((name, samples) for name, samples in buffered if name in jobs)
        return ProgressNoted(known) if known else None

    def samples_of(self, job: Job) -> int:
        """The newest samples of a job."""
        return self._samples.get(job.id, job.samples)

    def with_newest_samples(self, job: Job) -> Job:
        """A job with its newest samples."""
        samples = self._samples.get(job.id)
        return job if samples is None or job.state.final else replace(job, samples=samples)


class EndedJobs:
    """Up to `MAX_ENDED_JOBS` jobs, those that ended last."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Begin with jobs that have ended, the latest last."""
        self._jobs: dict[str, Job] = {}
        self.note_ended(jobs)

    def note_ended(self, changed: Iterable[Job]) -> None:
        """Keep those of the jobs that have ended, unless their trainers have said the last word."""
        for job in changed:
            if job.state.final and job.reason_code is not JobReason.TRAINER_DONE:
                self._jobs[job.id] = job
        while len(self._jobs) > MAX_ENDED_JOBS:
            del self._jobs[next(iter(self._jobs))]

    def corrected(self, seen: Progressed) -> Job | None:
        """An ended job with the samples that Monitor reports; None where that is no news, or no such job."""
        job = self._jobs.get(seen.job_id)
        if job is None or job.samples == seen.samples:
            return None
        self._jobs[job.id] = replace(job, samples=seen.samples)
        return self._jobs[job.id]

    def forget(self, numbers: Collection[int]) -> None:
        """Forget jobs, by number, that are to be deleted."""
        self._jobs = {name: job for name, job in self._jobs.items() if job.number not in numbers}
