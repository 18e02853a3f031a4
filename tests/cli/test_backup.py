"""What `malletrain backup` and `malletrain restore` refuse; the rest is in tests/runtime/backup and tests/system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from malletrain.allocator.history.plan_store import PlanStore
from malletrain.cli.shared.settings import load
from malletrain.runtime.access.pki import ensure_certificate, publish_authority
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.tls.credentials import public_server_credentials
from malletrain.v1 import allocator_pb2
from tests.support.ports import free_port
from tests.system.deployment import run_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with settings, and an installation in `state`."""
    ports = "\n".join(f'{name} = "127.0.0.1:{free_port()}"' for name in ("scavenger", "monitor", "job_manager"))
    (tmp_path / "malletrain.toml").write_text(f'state_dir = "{tmp_path}/state"\n[addresses]\n{ports}\n')
    settings = Settings(state_dir=tmp_path / "state")
    PlanStore(open_database(settings.database("allocator")), 10).add(allocator_pb2.Plan(generation=7))
    return tmp_path


@pytest.fixture
def serving(folder: Path) -> Iterator[str]:
    """Somebody who answers as JobManager, without the lock of the state folder."""
    text = (folder / "malletrain.toml").read_text()
    address = text.split('job_manager = "')[1].split('"')[0]
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(2))
    health = HealthServicer()
    health.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    state_dir, clock = load(folder / "malletrain.toml").state_dir, SystemClock()
    certificate = ensure_certificate(state_dir, "job_manager", clock, 3600.0)
    publish_authority(state_dir, state_dir / "ca.pem", clock)
    server.add_secure_port(address, public_server_credentials(certificate))
    server.start()
    yield address
    server.stop(None)


def test_there_and_back(folder: Path) -> None:
    made = run_command("backup", "backup.tar.gz", cwd=folder)
    assert made.returncode == 0, made.stderr
    assert "secret" in made.stdout
    refused = run_command("restore", "backup.tar.gz", cwd=folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--force" in refused.stderr
    restored = run_command("restore", "backup.tar.gz", "--force", cwd=folder)
    assert restored.returncode == 0, restored.stderr
    assert "what was there before is in" in restored.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "FILE: expected an archive of `malletrain backup`, or --continue"),
        (("a.tar.gz", "--continue"), "FILE: expected an archive of `malletrain backup`, or --continue"),
        (("--continue",), "--continue: expected a restore that was interrupted: there is none"),
        (("nowhere.tar.gz", "--force"), "FILE: expected an archive of `malletrain backup` that is whole"),
        (("malletrain.toml", "--force"), "FILE: expected an archive of `malletrain backup` that is whole"),
    ],
)
def test_wrong_uses(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    refused = run_command("restore", *arguments, cwd=folder)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_nothing_is_restored_while_a_service_answers(folder: Path, serving: str) -> None:
    assert run_command("backup", "backup.tar.gz", cwd=folder).returncode == 0
    refused = run_command("restore", "backup.tar.gz", "--force", cwd=folder)
    assert refused.returncode == 1
    assert f"job_manager runs at {serving}: stop the services first" in refused.stderr


def test_a_folder_that_can_not_be_written(folder: Path) -> None:
    refused = run_command("backup", "nowhere/backup.tar.gz", cwd=folder)
    assert refused.returncode == 2
    assert "FILE: expected a new file in a folder that exists" in refused.stderr
