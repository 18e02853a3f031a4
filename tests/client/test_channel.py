"""How a sidecar reaches Monitor: in plain text on loopback only, elsewhere by what its environment says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from malletrain.client.monitor_stream import open_channel
from malletrain.job_manager.launching.environment import worker_environment
from malletrain.job_manager.service import _monitor_address
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.access.pki import ensure_certificate, publish_authority
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.tls.credentials import public_server_credentials
from malletrain.tls.files import CertificateFileError
from tests.job_manager.harness import spec
from tests.support.addresses import own_address


def environment(settings: Settings) -> dict[str, str]:
    """What JobManager gives to workers."""
    monitor = _monitor_address(settings, JobManagerSettings())
    return worker_environment("j000001", Path("/jobs/j000001"), spec(), 1, monitor)


def test_monitor_is_known_by_its_role_off_loopback(tmp_path: Path) -> None:
    host, clock = own_address(), SystemClock()
    server = grpc.server(ThreadPoolExecutor(1))
    echo = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", echo),))
    credentials = public_server_credentials(ensure_certificate(tmp_path, "monitor", clock, 3600))
    port = server.add_secure_port(f"{host}:0", credentials)
    publish_authority(tmp_path, tmp_path / "ca.pem", clock)
    server.start()
    found = environment(Settings(state_dir=tmp_path, addresses=Addresses(monitor=f"{host}:{port}")))
    try:
        with open_channel(found["MALLETRAIN_MONITOR"], found) as channel:
            assert channel.unary_unary("/t.T/Echo")(b"hello", timeout=5) == b"hello"
        other = found | {"MALLETRAIN_MONITOR_NAME": "scavenger.malletrain.internal"}
        with open_channel(found["MALLETRAIN_MONITOR"], other) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/t.T/Echo")(b"hello", timeout=5)
    finally:
        server.stop(0).wait()


def test_without_a_certificate_nothing_is_sent() -> None:
    with pytest.raises(CertificateFileError):
        open_channel("192.0.2.7:1", {})


def test_on_loopback_workers_are_told_nothing_more(tmp_path: Path) -> None:
    found = environment(Settings(state_dir=tmp_path))
    assert not {"MALLETRAIN_MONITOR_AUTHORITY", "MALLETRAIN_MONITOR_NAME"} & found.keys()
    open_channel(found["MALLETRAIN_MONITOR"], found).close()
