"""Messages of jobs, with as much in them as whoever asks may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from malletrain.common.memory_by_job import MemoryByJob
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.visibility import for_service, visible_to
from malletrain.job_manager.wire import job_message
from malletrain.runtime.access.identity import Role, current_caller
from malletrain.runtime.pieces import pieces
from malletrain.v1 import resources_pb2


class JobMessages:
    """Messages of jobs to the caller of the present call. Use from one event loop."""

    def __init__(self, with_newest_samples: Callable[[Job], Job], version_of: Callable[[str], str]) -> None:
        """
        Args:
            with_newest_samples: Returns a job with samples that are not among its records yet.
            version_of: Returns the version of MalleTrain that a job's supervisor runs; empty if none is known.
        """
        self._with_newest_samples = with_newest_samples
        self._version_of = version_of
        self._for_services: MemoryByJob[resources_pb2.Job] = MemoryByJob()

    def message(self, job: Job) -> resources_pb2.Job:
        """A job as the caller may see it."""
        message = job_message(self._with_newest_samples(job), self._version_of(job.id))
        return visible_to(current_caller(), message)

    def message_among_many(self, job: Job) -> resources_pb2.Job:
        """A job among many: services are told no more than they need."""
        if current_caller().role is not Role.SERVICE:
            return self.message(job)
        terms = self._with_newest_samples(job), self._version_of(job.id)
        if job.state.final:
            self._for_services.forget(job.id)
            return for_service(job_message(*terms))
        # Several services follow the jobs, and are told the same.
        return self._for_services.value(job.id, terms, lambda: for_service(job_message(*terms)))

    def split(self, jobs: Iterable[Job], *, in_pieces: bool) -> Iterator[tuple[list[resources_pb2.Job], bool]]:
        """Many jobs, in pieces that fit one message each where the reader takes several.

        Yields:
            Messages, and whether more follow.
        """
        messages = map(self.message_among_many, jobs)
        return pieces(messages) if in_pieces else iter([(list(messages), False)])
