"""The demo's calls while its services are being restarted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from malletrain.cli.demo import command
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.v1 import job_manager_pb2, resources_pb2


class RestartingJobManager:
    """Fails so many times before it answers.

    Attributes:
        requests: What it has been asked.
    """

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.requests: list[job_manager_pb2.SubmitJobsRequest] = []

    def SubmitJobs(
        self, request: job_manager_pb2.SubmitJobsRequest, timeout: float
    ) -> job_manager_pb2.SubmitJobsResponse:
        assert timeout > 0
        self.requests.append(request)
        if len(self.requests) <= self._failures:
            raise grpc.RpcError("restarting")
        return job_manager_pb2.SubmitJobsResponse(jobs=[resources_pb2.Job(id="job-1")])


class SetClock:
    """Stands in for the module `time`: only sleeping lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def submit(monkeypatch: pytest.MonkeyPatch, manager: RestartingJobManager) -> tuple[SetClock, Any]:
    clock = SetClock()
    monkeypatch.setattr(command, "time", clock)
    stubs = cast(ServiceStubs, SimpleNamespace(job_manager=manager))
    try:
        return clock, command.submit_jobs(stubs)
    except grpc.RpcError as error:
        return clock, error


def test_a_submission_is_repeated_as_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = RestartingJobManager(failures=2)
    clock, submitted = submit(monkeypatch, manager)
    assert (submitted, clock.now) == (["job-1"], 0.6)
    assert len(manager.requests) == 3
    assert len({request.request_id for request in manager.requests}) == 1, "it would be submitted three times"


def test_a_service_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, error = submit(monkeypatch, RestartingJobManager(failures=1000))
    assert isinstance(error, grpc.RpcError)
    assert 30.0 <= clock.now < 31.0
