"""What watchers of jobs are told of a change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.job_manager.jobs import Job


@dataclass(frozen=True)
class JobsChanged:
    """What watchers of jobs are told.

    Attributes:
        jobs: Jobs that changed, as they are now, by identifier.
        generation: Of the newest plan, if this one has changed them.
        only_progress: Whether nothing but samples has changed.
    """

    jobs: Mapping[str, Job]
    generation: int | None = None
    only_progress: bool = False

    def followed_by(self, later: JobsChanged) -> JobsChanged:
        """Both as one."""
        generation = self.generation if later.generation is None else later.generation
        return JobsChanged({**self.jobs, **later.jobs}, generation, self.only_progress and later.only_progress)
