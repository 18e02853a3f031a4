"""The services of docker-compose.yml with their databases in PostgreSQL, in a container beside them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.composition import ROOT, Composition, missing_images

pytestmark = [pytest.mark.containers, pytest.mark.timeout(240)]
_SCHEMAS = "SELECT schema_name FROM information_schema.schemata"


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the users of the containers can read; nobody else can enter its folder."""
    path = tmp_path_factory.mktemp("secrets") / "password"
    path.write_text(secrets.token_hex(16) + "\n")
    path.chmod(0o444)
    return path


@pytest.fixture(scope="module")
def composition(password_file: Path) -> Iterator[Composition]:
    if missing := missing_images("head", "trainer", "postgres"):
        pytest.skip(missing)
    made = Composition(
        "malletrain-test-postgresql",
        {"DATABASE_PASSWORD_FILE": str(password_file)},
        ("--env-file", str(ROOT / "deploy/docker/postgres.env")),
    )
    made.down("--volumes")
    try:
        # The Allocator would have the job started and ended.
        made.up("job_manager")
        yield made
    finally:
        made.down("--volumes")


def test_jobs_are_in_postgresql_and_outlive_the_containers(composition: Composition, password_file: Path) -> None:
    submitted = composition.cli("submit", "--backend", "command", "--max", "1", "--", "sleep", "1").strip()
    query = (
        "psql",
        "--host=127.0.0.1",
        "--username=malletrain",
        "--tuples-only",
        f"--command={_SCHEMAS}",
        "malletrain",
    )
    password = ("--env", f"PGPASSWORD={password_file.read_text().strip()}")
    found = composition.run("exec", "--no-TTY", *password, "postgres", *query)
    assert {"malletrain_job_manager", "malletrain_monitor"} <= set(found.split())
    files = composition.run("exec", "--no-TTY", "job_manager", "ls", "/var/lib/malletrain")
    assert "job_manager.sqlite" not in files
    composition.down()
    composition.up("job_manager")
    assert submitted in composition.jobs()


def test_the_password_is_in_no_listing(composition: Composition, password_file: Path) -> None:
    password = password_file.read_text().strip()
    for service in ("postgres", "scavenger", "monitor", "job_manager"):
        assert password not in str(composition.inspect(service)), service
    assert password not in composition.run("logs")
