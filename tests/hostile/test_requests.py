"""Malformed requests to every method of five real services with a job that runs: clear answers, and no effect."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import psutil
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings

from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import load
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.hostile.malformed import broken_bytes, extreme, methods, not_utf8
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NODES = 3
STREAM_SECONDS = 0.3
CLEAR = {
    grpc.StatusCode.PERMISSION_DENIED,  # a MUNGE credential, where MUNGE is off
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
FEW = settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    nodes = [f"n{index + 1}" for index in range(NODES)]
    toml = f'[access]\nmunge = "off"\n[scavenger]\nsource = "static"\nnodes = {nodes}\ndebounce_seconds = 0\n'
    with deployed(tmp_path_factory.mktemp("up"), toml) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == NODES, 30, "all nodes")
        spec = resources_pb2.JobSpec(
            name="quiet",
            command=["sleep", "1000"],
            working_directory="/",
            min_nodes=1,
            max_nodes=1,
            backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
        )
        request = job_manager_pb2.SubmitJobsRequest(specs=[spec])
        deployment.stubs.job_manager.SubmitJobs(request, timeout=5)
        wait_until(lambda: the_job(deployment).state == resources_pb2.JOB_STATE_RUNNING, 60, "a running job")
        yield deployment


def the_job(system: Deployment) -> resources_pb2.Job:
    (job,) = system.stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=5).jobs
    return job


@pytest.fixture(scope="module")
def channels(system: Deployment) -> Iterator[dict[str, grpc.Channel]]:
    """Channels of a caller who may do everything."""
    settings = load(system.config)
    credential = open_installation(settings, SystemClock()).credential("hostile")
    opened = {name: open_blocking_channel(settings.peer(name), credential) for name in SERVICES}
    opened["access"] = open_blocking_channel(settings.peer("job_manager"), owner_credential(settings))
    yield opened
    for channel in opened.values():
        channel.close()


@pytest.fixture(autouse=True)
def _unharmed(system: Deployment) -> Iterator[None]:
    """The services are the same processes afterwards, the job was not started again, and no job has come."""
    pids, job = system.pids(), the_job(system)
    yield
    assert system.pids() == pids
    after = the_job(system)
    assert (after.id, after.state, list(after.confirmed_nodes), after.restarts, after.rescales) == (
        job.id,
        job.state,
        list(job.confirmed_nodes),
        job.restarts,
        job.rescales,
    )


def call(channels: dict[str, grpc.Channel], method: MethodDescriptor, body: bytes) -> grpc.StatusCode:
    """The status of a call with such a body, which is sent as it is; streams are read for a moment."""
    service = method.containing_service
    name = "".join("_" + c.lower() if c.isupper() else c for c in service.name.removesuffix("Service"))[1:]
    channel, path = channels[name], f"/{service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            list(channel.stream_stream(path)(iter([body]), timeout=5))
        elif method.server_streaming:
            list(channel.unary_stream(path)(body, timeout=STREAM_SECONDS))
        else:
            channel.unary_unary(path)(body, timeout=10)
    except grpc.RpcError as error:
        if (
            method.server_streaming
            and not method.client_streaming
            and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        ):
            return grpc.StatusCode.OK
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_bytes_that_are_no_message_are_refused(method: MethodDescriptor, channels: dict[str, grpc.Channel]) -> None:
    @FEW
    @given(broken_bytes(method))
    def check(body: bytes) -> None:
        assert call(channels, method, body) is grpc.StatusCode.INVALID_ARGUMENT

    check()


@pytest.mark.parametrize("method", [method for method in methods() if not_utf8(method)], ids=lambda method: method.name)
def test_text_that_is_not_utf8_is_refused(method: MethodDescriptor, channels: dict[str, grpc.Channel]) -> None:
    body = not_utf8(method)
    assert body is not None
    assert call(channels, method, body) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_extreme_values_get_a_clear_status(method: MethodDescriptor, channels: dict[str, grpc.Channel]) -> None:
    @FEW
    @given(extreme(method.input_type))
    def check(message: Message) -> None:
        if method.name == "DrainNodes":
            message.ClearField("all")  # which an operator may ask for, and which takes every job's nodes
        assert call(channels, method, message.SerializeToString()) in CLEAR | {grpc.StatusCode.OK}

    check()


def test_memory_returns_after_many_malformed_requests(system: Deployment, channels: dict[str, grpc.Channel]) -> None:
    def flood(rounds: int) -> None:
        for method in (method for method in methods() if not method.server_streaming):
            for index in range(rounds):
                body = b"\x0a\x05abc" if index % 2 else b"\x0a" + b"\x80\x80\x04" + b"a" * 65_536
                assert call(channels, method, body) in CLEAR | {grpc.StatusCode.OK}

    def resident() -> dict[str, int]:
        return {name: psutil.Process(pid).memory_info().rss for name, pid in system.pids().items()}

    flood(50)
    before = resident()
    flood(200)
    for name, now in resident().items():
        assert now <= 1.1 * before[name], f"{name}: {before[name]} to {now} bytes"
