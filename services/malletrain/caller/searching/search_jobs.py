"""The jobs of a search, as the services have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from malletrain.caller.searching.decisions import TrialJob
from malletrain.caller.stubs import ServiceStubs
from malletrain.runtime.errors import InvalidInputError, NotFoundError, PreconditionError, UnavailableError
from malletrain.runtime.messages import job_state_of
from malletrain.runtime.paging import all_pages
from malletrain.v1 import access_pb2, job_manager_pb2, monitor_pb2, resources_pb2


class ServiceCalls(Protocol):
    """Calls services; errors are MalleTrainError, and calls are repeated while a service restarts."""

    @property
    def stubs(self) -> ServiceStubs:
        """Stubs of all services."""

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        """Call a method of a stub.

        Raises:
            MalleTrainError: the call has failed.
        """


class SearchJobs:
    """Submits, looks at and cancels jobs. Each call may be repeated."""

    def __init__(self, calls: ServiceCalls) -> None:
        """Call nothing yet.

        Args:
            calls: The services.
        """
        self._calls = calls

    def submit(self, spec: resources_pb2.JobSpec, request_id: str) -> str:
        """Submit a job; returns its identifier. With the same `request_id` again, nothing is submitted twice.

        Args:
            spec: The job; no other of the study has its name.
            request_id: The same for the same trial, always.

        Raises:
            MalleTrainError: JobManager refuses it, or does not answer.
        """
        request = job_manager_pb2.SubmitJobsRequest(request_id=request_id, specs=[spec])
        try:
            stored = self._calls.call(self._calls.stubs.job_manager.SubmitJobs, request).jobs
        except InvalidInputError as error:
            # Submitted before a crash, with options that are others now: that job is the one.
            found = self.find(spec.name) if error.field == "request_id" else ""
            if not found:
                raise
            return found
        return str(stored[0].id)

    def look(self, job_id: str, name: str) -> TrialJob | None:
        """A job as it is now; None: there is none, or the identifier is that of another job.

        Args:
            job_id: Its identifier.
            name: Its name. Identifiers begin anew where JobManager's state was removed.

        Raises:
            MalleTrainError: JobManager does not answer.
        """
        request = job_manager_pb2.GetJobRequest(job_id=job_id)
        try:
            job = self._calls.call(self._calls.stubs.job_manager.GetJob, request).job
        except NotFoundError:
            return None
        if job.spec.name != name:
            return None
        return TrialJob(job_state_of(job.state), dict(job.metrics), job.reason, job.spec.weight or 1.0)

    def logged(self, job_id: str, metric: str) -> Mapping[int, float]:
        """What a job has logged of a metric so far, by step; nothing while Monitor does not answer.

        Args:
            job_id: Its identifier.
            metric: Name of the metric.
        """
        request = monitor_pb2.GetMetricHistoryRequest(job_id=job_id, names=[metric])
        try:
            found = self._calls.call(self._calls.stubs.monitor.GetMetricHistory, request)
        except UnavailableError:
            return {}
        return {point.step: point.value for history in found.histories for point in history.points}

    def cancel(self, job_id: str) -> None:
        """End a job; nothing happens where it has ended, or there is none.

        Raises:
            MalleTrainError: JobManager refuses, or does not answer.
        """
        try:
            request = job_manager_pb2.CancelJobRequest(job_id=job_id)
            self._calls.call(self._calls.stubs.job_manager.CancelJob, request)
        except NotFoundError:
            return

    def set_weight(self, job_id: str, weight: float) -> None:
        """Give a job another weight; nothing happens where it has ended, or there is none.

        Raises:
            MalleTrainError: JobManager refuses, or does not answer.
        """
        try:
            request = job_manager_pb2.UpdateJobRequest(job_id=job_id, weight=weight)
            self._calls.call(self._calls.stubs.job_manager.UpdateJob, request)
        except (NotFoundError, PreconditionError):
            return

    def find(self, name: str) -> str:
        """The newest job of a name that the caller has submitted; empty: none.

        Args:
            name: Its name.

        Raises:
            MalleTrainError: JobManager does not answer.
        """
        user = self._calls.call(self._calls.stubs.access.GetIdentity, access_pb2.GetIdentityRequest()).identity.user
        request = job_manager_pb2.ListJobsRequest(name=name, owner=user)
        pages: Iterable[Any] = all_pages(
            lambda page, **_: self._calls.call(self._calls.stubs.job_manager.ListJobs, page), request
        )
        found = [str(job.id) for page in pages for job in page.jobs]
        return found[-1] if found else ""
