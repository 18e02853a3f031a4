"""A real `malletrain up`: who gets in, with the keys that it made itself, and what another Unix user can do."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.job_folder import TOKEN_FILE
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import (
    access_pb2,
    allocator_pb2,
    job_manager_pb2,
    monitor_pb2,
    profiler_pb2,
    scavenger_pb2,
)
from tests.access.munged import NOBODY, munged
from tests.support.everybody import folder_of_everybody
from tests.support.stranger import needs_another_account, run_as_number
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed, run_command

pytestmark = pytest.mark.system

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
backend = "command"
[access]
munge = "off"
"""
TRAINER = """
import itertools, time
from malletrain.client import report
for _ in itertools.count():
    time.sleep(0.02)
    report(32)
"""
READS = {
    "scavenger": ("ListNodes", scavenger_pb2.ListNodesRequest()),
    "allocator": ("GetPlan", allocator_pb2.GetPlanRequest()),
    "job_manager": ("ListJobs", job_manager_pb2.ListJobsRequest()),
    "monitor": ("GetProgress", monitor_pb2.GetProgressRequest()),
    "profiler": ("GetProfile", profiler_pb2.GetProfileRequest(job_id="j999999")),
}


@pytest.fixture(scope="module")
def system() -> Iterator[Deployment]:
    with folder_of_everybody() as folder, deployed(folder / "state", SETTINGS) as deployment:
        (deployment.folder / "loop.py").write_text(TRAINER)
        yield deployment


def token(system: Deployment, role: str, user: str) -> str:
    done = system.command("token", "--user", user, "--role", role, "--lifespan", "10m")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def code_of(system: Deployment, service: str, shown: str, method: str = "", request: object = None) -> str:
    """Code with which a call ends; by default that of a read."""
    stubs = ServiceStubs(load(system.config), FixedToken(shown))
    name, reading = READS[service]
    stub = stubs.access if method == "GetIdentity" else getattr(stubs, service)
    try:
        getattr(stub, method or name)(request or reading, timeout=10)
    except grpc.RpcError as error:
        found = error.code()
        assert isinstance(found, grpc.StatusCode)
        return found.name
    finally:
        stubs.close()
    return "OK"


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_asks_who_calls(system: Deployment, service: str) -> None:
    accepted = "NOT_FOUND" if service == "profiler" else "OK"
    viewer = token(system, "viewer", "vera")
    assert code_of(system, service, "") == "UNAUTHENTICATED"
    assert code_of(system, service, viewer[:-4] + "AAAA") == "UNAUTHENTICATED"
    wait_until(lambda: code_of(system, service, viewer) == accepted, 30, f"an answer of {service}")


def test_each_role_may_what_it_may(system: Deployment) -> None:
    cancel = job_manager_pb2.CancelJobRequest(job_id="j999999")
    reclaim = scavenger_pb2.ReclaimNodesRequest(nodes=["n9"])
    apply_plan = job_manager_pb2.ApplyPlanRequest(generation=1)
    expected = {
        "viewer": ("PERMISSION_DENIED", "PERMISSION_DENIED", "PERMISSION_DENIED"),
        "user": ("NOT_FOUND", "PERMISSION_DENIED", "PERMISSION_DENIED"),
        "operator": ("NOT_FOUND", "OK", "PERMISSION_DENIED"),
    }
    for role, codes in expected.items():
        shown = token(system, role, f"some-{role}")
        assert code_of(system, "job_manager", shown, "CancelJob", cancel) == codes[0]
        assert code_of(system, "scavenger", shown, "ReclaimNodes", reclaim) == codes[1]
        assert code_of(system, "job_manager", shown, "ApplyPlan", apply_plan) == codes[2]


def test_keys_and_tokens_are_their_owners_only(system: Deployment) -> None:
    keys = system.folder / "keys"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (keys, *keys.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {"token.key", "owner.token", "supervisor.pem"} <= {path.name for path in modes}


def test_a_revoked_token_is_refused_by_all_services_within_a_second(system: Deployment) -> None:
    shown = token(system, "user", "eve")
    for service in SERVICES:
        assert code_of(system, service, shown) in ("OK", "NOT_FOUND")
    assert system.command("token", "--revoke-user", "eve").returncode == 0
    for service in SERVICES:
        wait_until(lambda service=service: code_of(system, service, shown) == "UNAUTHENTICATED", 1.0, service)


def test_the_command_shows_what_it_is_given_and_explains_refusals(system: Deployment) -> None:
    mine = system.json("token")
    assert mine["role"] == "OPERATOR"
    assert system.command("token").stdout.strip() == owner_credential(load(system.config)).token() == mine["token"]
    wrong = system.command("token", "--revoke", "a", "--revoke-user", "b")
    assert wrong.returncode == 2
    environment = {**os.environ, "MALLETRAIN_TOKEN": token(system, "viewer", "vera")}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "malletrain.cli.main", *arguments]
        return subprocess.run(
            words, cwd=system.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert command("jobs").returncode == 0
    refused = command("cancel", "j000001")
    assert refused.returncode == 1
    assert "not permitted: CancelJob needs the role user, and vera has the role viewer" in refused.stderr
    environment["MALLETRAIN_TOKEN"] = "nonsense"
    unknown = command("jobs")
    assert unknown.returncode == 1
    assert "the services do not know you" in unknown.stderr
    assert "nonsense" not in unknown.stderr


def test_a_trainer_reports_for_its_own_job_and_can_do_nothing_else(system: Deployment) -> None:
    submitted = system.command("submit", "--max", "1", "--", sys.executable, str(system.folder / "loop.py"))
    job = submitted.stdout.split()[0]

    def samples() -> int:
        return int(system.json("jobs")[0]["samples"])

    wait_until(lambda: samples() > 0, 60, "samples of the job")
    path = system.folder / "jobs" / job / TOKEN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = path.read_text().strip()
    for service in SERVICES:
        assert code_of(system, service, shown) == "PERMISSION_DENIED"
    assert _reported(system, shown, job) == "OK"
    assert _reported(system, shown, "j999999") == "PERMISSION_DENIED"
    assert _reported(system, "", job) == "UNAUTHENTICATED"
    assert _reported(system, token(system, "operator", "olga"), job) == "PERMISSION_DENIED"
    assert system.command("cancel", job).returncode == 0


def _reported(system: Deployment, shown: str, job: str) -> str:
    """Code with which a report ends."""
    stubs = ServiceStubs(load(system.config), FixedToken(shown))
    try:
        list(stubs.monitor.Report(iter([monitor_pb2.ReportRequest(job_id=job, reporter_id="r", slots_per_node=1)])))
    except grpc.RpcError as error:
        found = error.code()
        assert isinstance(found, grpc.StatusCode)
        return found.name
    finally:
        stubs.close()
    return "OK"


def test_no_log_contains_a_secret(system: Deployment) -> None:
    shown = token(system, "user", "ada")
    assert code_of(system, "job_manager", shown, "GetIdentity", access_pb2.GetIdentityRequest()) == "OK"
    secrets = [shown, *((system.folder / "keys" / name).read_text().strip() for name in ("token.key", "owner.token"))]
    for log in [*(system.folder / "logs").iterdir(), system.folder / "up.log"]:
        text = log.read_text()
        assert not any(secret in text for secret in secrets), log.name


@needs_another_account
def test_another_unix_user_can_neither_read_the_owners_token_nor_call(system: Deployment) -> None:
    assert system.command("submit", "--max", "1", "--", "true").returncode == 0
    kept = {"job_manager.sqlite", "jobs", "logs", "run"}
    wait_until(lambda: kept <= {path.name for path in system.folder.iterdir()}, 60, "the folders of a job that runs")
    # Not even folders on the way keep the other user out: only those of the keys do.
    system.folder.chmod(0o755)
    for name in ("owner.token", "token.key"):
        path = system.folder / "keys" / name
        tried = _as_nobody(f"open({str(path)!r}).read()")
        assert "PermissionError" in tried, tried
    called = _as_nobody(CALL.format(config=str(system.config)))
    assert "UNAUTHENTICATED" in called, called
    public = {system.config.name, "up.log", "up.lock", "loop.py", "ca.pem"}  # the test's own, an empty one, no secret
    found = _as_nobody(READABLE.format(folder=str(system.folder)))
    assert set(found.split()) <= public, found


LOADED = """
import grpc, malletrain.caller.credentials, malletrain.cli.shared.settings, malletrain.cli.shared.stubs
grpc.insecure_channel("127.0.0.1:9").close()  # gRPC imports some of its modules then
"""


CALL = """
from pathlib import Path
import grpc
from malletrain.caller.credentials import caller_credential
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.v1 import access_pb2, job_manager_pb2, scavenger_pb2
settings = load(Path({config!r}))
stubs = ServiceStubs(settings, caller_credential(settings, {{}}))
stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10)
"""


READABLE = """
import os
for entry in os.scandir({folder!r}):
    if os.access(entry.path, os.R_OK):
        print(entry.name)
"""


def _as_nobody(code: str) -> str:
    """What Python code prints as the user nobody, with all that is imported here."""
    done = run_as_number(NOBODY, Path("/"), code, imports=LOADED)
    return done.stdout + done.stderr


@needs_another_account
def test_another_unix_user_is_known_by_munge_and_has_the_role_user() -> None:
    with tempfile.TemporaryDirectory(prefix="munge-") as folder, munged(Path(folder)) as munge:
        settings = SETTINGS.replace('munge = "off"', f'munge = "on"\nmunge_socket = "{munge.socket}"')
        with folder_of_everybody() as everybody, deployed(everybody / "state", settings) as deployment:
            deployment.folder.chmod(0o755)
            call = CALL.format(config=str(deployment.config))
            who = "print(stubs.access.GetIdentity(access_pb2.GetIdentityRequest(), timeout=10).identity)"
            found = _as_nobody(call + who)
            assert 'user: "nobody"' in found, found
            assert "role: ROLE_USER" in found
            reclaim = "stubs.scavenger.ReclaimNodes(scavenger_pb2.ReclaimNodesRequest(nodes=['n1']), timeout=10)"
            assert "PERMISSION_DENIED" in _as_nobody(call + reclaim)


def test_without_services_and_keys_the_command_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "malletrain.toml").write_text(f'state_dir = "{tmp_path}"\n[addresses]\njob_manager = "127.0.0.1:9"\n')
    done = run_command("jobs", cwd=tmp_path)
    assert done.returncode == 1
    assert "is `malletrain up` running?" in done.stderr
    with (tmp_path / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_command("jobs", cwd=tmp_path)
    assert done.returncode == 1
    assert "`malletrain up` runs here and has not started it yet: `malletrain health --seconds 60`" in done.stderr
