"""Calls of the command to a service that takes connections and never answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import grpc
import pytest

from malletrain.cli.shared.stubs import explain
from malletrain.runtime import channel as module
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.channel import open_blocking_channel, service_of
from malletrain.runtime.peer import Peer
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc
from tests.support.channels import stand_in_authority


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[job_manager_pb2_grpc.JobManagerServiceStub]:
    """JobManager, whose process is stopped: the kernel takes connections for it."""
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Peer("job_manager", f"127.0.0.1:{listener.getsockname()[1]}", stand_in_authority(), "job_manager")
        with open_blocking_channel(peer, FixedToken("token")) as channel:
            yield job_manager_pb2_grpc.JobManagerServiceStub(channel)


def test_a_call_without_a_deadline_gets_one(stub: job_manager_pb2_grpc.JobManagerServiceStub) -> None:
    begin = time.monotonic()
    with pytest.raises(grpc.RpcError) as raised:
        stub.ListJobs(job_manager_pb2.ListJobsRequest())
    assert time.monotonic() - begin < 5
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_an_error_names_the_service(stub: job_manager_pb2_grpc.JobManagerServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as unary:
        stub.ListJobs.with_call(job_manager_pb2.ListJobsRequest(), timeout=0.2)
    with pytest.raises(grpc.RpcError) as stream:
        list(stub.StreamLogs(job_manager_pb2.StreamLogsRequest(), timeout=0.2))
    with pytest.raises(grpc.RpcError) as later:
        stub.ListJobs.future(job_manager_pb2.ListJobsRequest(), timeout=0.2).result()
    for raised in (unary, stream, later):
        assert service_of(raised.value) == "job_manager"
        assert str(explain(raised.value)).startswith("JobManager did not answer in time")


def test_an_error_of_another_channel_names_none() -> None:
    assert service_of(grpc.RpcError()) == ""
