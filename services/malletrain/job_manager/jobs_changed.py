"""What watchers of jobs are told of a change. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from malletrain.job_manager.jobs import Job


@dataclass(frozen=True)
class JobsChanged:
    """What watchers of jobs are told.

    Attributes:
        jobs: Jobs that changed, as they are now, by identifier.
        generation: Of the newest plan, if this one has changed them.
        progressed: Those of which nothing but samples has changed.
    """

    jobs: Mapping[str, Job]
    generation: int | None = None
    progressed: Set[str] = frozenset()

    def followed_by(self, later: JobsChanged) -> JobsChanged:
        """Both as one."""
        generation = self.generation if later.generation is None else later.generation
        # Of a job that only the one names, it counts what that one says; of a job that both name, what both say.
        only_progress = (
            (self.progressed - later.jobs.keys())
            | (later.progressed - self.jobs.keys())
            | (self.progressed & later.progressed)
        )
        return JobsChanged({**self.jobs, **later.jobs}, generation, only_progress)

    def told(self, *, without_progress: bool) -> Collection[Job]:
        """The jobs that a watcher is told of.

        Args:
            without_progress: Whether it does not want to know of samples alone.
        """
        if not without_progress:
            return self.jobs.values()
        return [job for name, job in self.jobs.items() if name not in self.progressed]
