"""`malletrain health`: asks real servers, and tells those that serve from those that do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from malletrain.cli.health import health
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from tests.support.channels import stand_in_authority, stand_in_credentials

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[HealthServicer]:
    """Health checks of a server at Monitor's address."""
    servicer = HealthServicer()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_secure_port("127.0.0.1:0", stand_in_credentials())
    monkeypatch.setenv("MALLETRAIN_ADDRESSES__MONITOR", f"127.0.0.1:{port}")
    monkeypatch.setenv("MALLETRAIN_TLS__AUTHORITY_FILE", str(stand_in_authority()))
    monkeypatch.setenv("MALLETRAIN_ADDRESSES__PROFILER", "127.0.0.1:1")
    server.start()
    yield servicer
    server.stop(None).wait()


def test_service_that_serves(monitor: HealthServicer) -> None:
    monitor.set("", SERVING)
    health(["monitor"], None, 5)


def test_service_that_drains(monitor: HealthServicer) -> None:
    monitor.set("", NOT_SERVING)
    with pytest.raises(MalleTrainError, match="monitor: no answer"):
        health(["monitor"], None, 0)


def test_silent_service_is_named(monitor: HealthServicer) -> None:
    monitor.set("", SERVING)
    with pytest.raises(MalleTrainError, match="profiler: no answer") as raised:
        health(["monitor", "profiler"], None, 0)
    assert "monitor" not in str(raised.value)


def test_unknown_service() -> None:
    with pytest.raises(InvalidInputError, match=r"NAME: expected one of scavenger, .* got 'trainer'"):
        health(["trainer"], None, 0)


def test_verb_alone_says_it_by_its_exit_status(monitor: HealthServicer) -> None:
    monitor.set("", SERVING)
    command = [sys.executable, "-m", "malletrain.cli.health", "--seconds", "0"]
    assert subprocess.run([*command, "monitor"], check=False).returncode == 0
    silent = subprocess.run([*command, "profiler"], capture_output=True, text=True, check=False)
    assert (silent.returncode, silent.stderr) == (1, "error: profiler: no answer\n")
