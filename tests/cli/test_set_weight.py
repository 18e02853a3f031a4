"""`malletrain set` of many jobs: it waits where JobManager refuses more changes, and goes on."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from malletrain.cli.jobs.changing import update_in_turn
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import resources_pb2


class RefusedError(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "ada changes jobs too often"


class Bucket:
    """So many changes are allowed, and one more after each pause of two seconds in all."""

    def __init__(self, tokens: float, code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED) -> None:
        self.tokens, self.code, self.paused, self.told = tokens, code, 0.0, list[str]()

    def update(self, request: pb.UpdateJobRequest, **_: Any) -> pb.UpdateJobResponse:
        if self.tokens < 1:
            raise RefusedError(self.code)
        self.tokens -= 1
        spec = resources_pb2.JobSpec(weight=request.weight)
        return pb.UpdateJobResponse(job=resources_pb2.Job(id=request.job_id, spec=spec))

    def pause(self, seconds: float) -> None:
        self.paused += seconds
        self.tokens += seconds / 2


def requests(count: int) -> list[pb.UpdateJobRequest]:
    return [pb.UpdateJobRequest(job_id=f"j{number:06}", weight=2.0) for number in range(count)]


def test_all_jobs_of_a_large_array_are_changed() -> None:
    bucket = Bucket(200)
    changed = list(update_in_turn(bucket.update, requests(1000), bucket.told.append, bucket.pause))
    assert [job.id for job in changed] == [request.job_id for request in requests(1000)]
    assert bucket.told == ["waiting, and going on then: ada changes jobs too often"]
    assert bucket.paused < 3 * 2 * 800


def test_a_refusal_that_does_not_pass_ends_it_after_a_minute() -> None:
    bucket = Bucket(-1000)
    with pytest.raises(RefusedError):
        list(update_in_turn(bucket.update, requests(1), bucket.told.append, bucket.pause))
    assert 50 < bucket.paused < 70


def test_other_errors_are_raised_at_once() -> None:
    bucket = Bucket(0, grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(RefusedError):
        list(update_in_turn(bucket.update, requests(1), bucket.told.append, bucket.pause))
    assert bucket.paused == 0
