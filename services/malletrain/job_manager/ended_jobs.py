"""The jobs that ended last: what Monitor says of them afterwards still counts. Pure.

JobManager asks Monitor once for the samples of a job that ends, and does not keep its nodes waiting for the answer.
While Monitor is away there is none; then the last batches come with Monitor's next stream of progress. Where a trainer
has said that it is done, its own count stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.stimuli import Progressed
from malletrain.job_manager.transitions import JobReason

MOST_ENDED_JOBS = 500


class EndedJobs:
    """Up to `MOST_ENDED_JOBS` jobs, those that ended last."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Begin with jobs that have ended, the latest last."""
        self._jobs: dict[str, Job] = {}
        self.note(jobs)

    def note(self, changed: Iterable[Job]) -> None:
        """Keep those of the jobs that have ended, unless their trainers have said the last word."""
        for job in changed:
            if job.state.final and job.reason_code is not JobReason.TRAINER_DONE:
                self._jobs[job.id] = job
        while len(self._jobs) > MOST_ENDED_JOBS:
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
