"""Bytes that are no gRPC, connections that say nothing, readers that do not read: the services go on serving others."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import grpc
import pytest

from malletrain.cli.shared.settings import load
from malletrain.runtime.limits import raise_file_limit
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import allocator_pb2, job_manager_pb2, monitor_pb2, profiler_pb2, scavenger_pb2
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

IDLE_CONNECTIONS = 1000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_REQUEST = 16 * 1024 * 1024
_GIBBERISH = random.Random(7).randbytes(4096)
OPENINGS = {
    "nothing": b"",
    "http/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an endless header": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
    "gibberish": _GIBBERISH,
    "half a preface": PREFACE[:10],
    "a preface and no settings": PREFACE,
    "a preface and a frame of 16 MB": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + _GIBBERISH,
    "a preface and gibberish": PREFACE + _GIBBERISH,
    "half a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _GIBBERISH[:200],
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    more = f'monitor_for_nodes = "127.0.0.1:{free_port()}"\n[metrics]\njob_manager = "127.0.0.1:{free_port()}"\n'
    toml = f'{more}[scavenger]\nsource = "static"\nnodes = ["n1", "n2"]\ndebounce_seconds = 0\n'
    with deployed(tmp_path_factory.mktemp("up"), toml) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 30, "all nodes")
        yield deployment


@pytest.fixture(autouse=True)
def _unharmed(system: Deployment) -> Iterator[None]:
    pids = system.pids()
    yield
    assert system.pids() == pids
    answers(system)


def answers(system: Deployment) -> None:
    """Every service answers a call of somebody else."""
    stubs = system.stubs
    try:
        calls = (
            stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=10),
            stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=10),
            stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10),
            stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=10),
            next(stubs.profiler.WatchProfiles(profiler_pb2.WatchProfilesRequest(), timeout=10)),
        )
        assert len(calls) == len(SERVICES)
    finally:
        stubs.close()


def ports(system: Deployment) -> list[int]:
    listening = [system.address(name) for name in (*SERVICES, "monitor_for_nodes")]
    return [int(address.rpartition(":")[2]) for address in (*listening, load(system.config).metrics.job_manager)]


@contextlib.contextmanager
def connected(port: int, opening: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        with contextlib.suppress(OSError):  # the other side may close before it has read all
            connection.sendall(opening)
        yield connection


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_whatever_a_stranger_opens_with_others_are_served(system: Deployment, opening: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for port in ports(system):
            stack.enter_context(connected(port, opening))
        answers(system)


def test_a_thousand_idle_connections_keep_nobody_out(system: Deployment) -> None:
    raise_file_limit()
    port = int(system.address("job_manager").rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(connected(port, PREFACE))
        answers(system)


def test_a_request_that_is_too_large_is_refused(system: Deployment) -> None:
    request = job_manager_pb2.GetJobRequest(job_id="a" * (MAX_REQUEST + 1))
    with pytest.raises(grpc.RpcError) as caught:
        system.stubs.job_manager.GetJob(request, timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_error_does_not_repeat_a_long_request(system: Deployment) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        system.stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id="🚂" * 70_000), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert len(caught.value.details()) < 600


def test_a_reader_that_does_not_read_keeps_nobody_waiting(system: Deployment) -> None:
    stubs = [system.stubs for _ in range(20)]
    streams = [stub.scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest(), timeout=60) for stub in stubs]
    for index in range(200):
        request = scavenger_pb2.ReclaimNodesRequest(nodes=["n1"], hold_seconds=0.001)
        assert system.stubs.scavenger.ReclaimNodes(request, timeout=5) is not None, index
    answers(system)
    for stream in streams:
        stream.cancel()
    for stub in stubs:
        stub.close()
