"""How a sidecar reaches Monitor: by what its environment says, in plain text under version 0.1 only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from malletrain.client.monitor_stream import open_channel
from malletrain.job_manager.launching.launch_settings import monitor_address
from malletrain.job_manager.launching.starting import worker_environment
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.access.pki import ensure_certificate, publish_authority
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.tls.credentials import public_server_credentials
from malletrain.tls.files import CertificateFileError
from tests.support.addresses import own_address
from tests.support.builders import job_spec


def environment(settings: Settings) -> dict[str, str]:
    """What JobManager gives to workers, but for the copy of the CA's file in the job's folder."""
    monitor = monitor_address(settings, JobManagerSettings())
    return worker_environment("j000001", Path("/jobs/j000001"), job_spec(), 1, monitor)


@pytest.mark.parametrize("host", ["127.0.0.1", own_address()])
def test_monitor_is_known_by_its_role(tmp_path: Path, host: str) -> None:
    clock = SystemClock()
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


def test_trainers_report_in_plain_text_where_an_operator_lets_those_of_version_0_1(tmp_path: Path) -> None:
    access = AccessSettings(reports_without_tls=True)
    found = environment(Settings(state_dir=tmp_path, access=access))
    assert not {"MALLETRAIN_MONITOR_AUTHORITY", "MALLETRAIN_MONITOR_NAME", "MALLETRAIN_MONITOR_WITH_TLS"} & found.keys()
    open_channel(found["MALLETRAIN_MONITOR"], found).close()


def test_an_agent_of_version_0_1_replaces_the_address_only(tmp_path: Path) -> None:
    publish_authority(tmp_path, tmp_path / "ca.pem", SystemClock())
    found = environment(Settings(state_dir=tmp_path)) | {"MALLETRAIN_MONITOR": "127.0.0.1:5"}
    server = grpc.server(ThreadPoolExecutor(1))
    echo = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", echo),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with open_channel(address, found) as channel:
        assert channel.unary_unary("/t.T/Echo")(b"hello", timeout=5) == b"hello"
    server.stop(0).wait()
