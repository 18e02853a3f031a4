"""Tables of every earlier version are upgraded: completely or not at all, with a copy of what was there."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, inspect, text

from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.errors import SchemaVersionError
from malletrain.runtime.database.migrating import open_database, upgrade_database
from malletrain.runtime.database.schema_history import SchemaHistory, revision_of
from malletrain.runtime.errors import MalleTrainError
from tests.support.clocks import ManualClock
from tests.support.postgresql import Locate, PostgresServer
from tests.support.waiting import wait_until

STORES = {
    "job_manager": "malletrain.job_manager.storage.store",
    "monitor": "malletrain.monitor.store",
    "profiler": "malletrain.profiler.store",
    "allocator": "malletrain.allocator.history.idle_store",
}
EARLIER = {
    "0.1.0": Path(__file__).parents[2] / "system" / "state_0_1_0",
    "before revisions": Path(__file__).with_name("before_revisions"),
}
NEXT = """
import os, time
from pathlib import Path
import sqlalchemy as sa
from alembic import op
revision = "0003"
down_revision = "0002"

def upgrade():
    op.add_column("profiler_documents", sa.Column("first", sa.Integer, nullable=True))
    op.execute("UPDATE profiler_documents SET body = 'changed'")
    wait_in = os.environ.get("WAIT_IN")
    if wait_in:
        (Path(wait_in) / "in the middle").touch()
        time.sleep(600)
    op.add_column("profiler_documents", sa.Column("second", sa.Integer, nullable=True))
"""
UPGRADER = """
import sys
from pathlib import Path
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import upgrade_database
from malletrain.runtime.database.schema_history import SchemaHistory

state_dir, url, password_file, folder = sys.argv[1:]
address = DatabaseAddress("profiler", Path(state_dir), url, Path(password_file) if password_file else None)
upgrade_database(address, SchemaHistory("profiler", Path(folder)))
"""


def metadata_of(service: str) -> MetaData:
    import_module(f"malletrain.{service}.service")  # all of its modules that have tables
    found: MetaData = import_module(STORES[service]).METADATA
    return found


def differences(address: DatabaseAddress) -> list[Any]:
    """What Alembic would change to make the tables those of the code."""
    with open_engine(address).connect() as connection:
        context = MigrationContext.configure(connection)
        return list(compare_metadata(context, metadata_of(address.service)))


def lay(dump: Path, address: DatabaseAddress) -> None:
    with closing(sqlite3.connect(address.file)) as connection:
        connection.executescript(dump.read_text())


def rows(address: DatabaseAddress) -> dict[str, int]:
    """Number of rows by table, without Alembic's."""
    engine = open_engine(address)
    with engine.connect() as connection:
        names = [name for name in inspect(connection).get_table_names() if name != "alembic_version"]
        return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in names}


def copies(address: DatabaseAddress) -> list[Path]:
    return sorted((address.state_dir / "backups").glob(f"{address.service}-*"))


def with_next(tmp_path: Path) -> SchemaHistory:
    """The Profiler's history as a later version might continue it."""
    folder = tmp_path / "later"
    folder.mkdir(exist_ok=True)
    present = Path(import_module(STORES["profiler"]).__file__ or "").with_name("migrations")
    for revision in present.glob("*.py"):
        (folder / revision.name).write_text(revision.read_text())
    (folder / "next.py").write_text(NEXT)
    return SchemaHistory("profiler", folder)


def put_document(address: DatabaseAddress) -> None:
    with open_engine(address).begin() as connection:
        connection.execute(text("INSERT INTO profiler_documents (name, body) VALUES ('desk', '{}')"))


def documents(address: DatabaseAddress) -> list[dict[str, Any]]:
    with open_engine(address).connect() as connection:
        return [dict(row) for row in connection.execute(text("SELECT * FROM profiler_documents")).mappings()]


@pytest.mark.parametrize("made_at_once", [True, False])
@pytest.mark.parametrize("service", STORES)
def test_a_new_database_has_the_tables_of_the_code(locate: Locate, service: str, made_at_once: bool) -> None:
    """Whether they are made by all revisions, or at once: then no revision is left to be applied."""
    address = locate(service)
    open_database(address, metadata_of(service) if made_at_once else None)
    assert differences(address) == []
    assert not copies(address), "there was nothing to copy"
    with open_engine(address).connect() as connection:
        assert revision_of(connection) == SchemaHistory(service).newest
    open_database(address)
    assert not copies(address), "nothing was left to upgrade"


def statements(address: DatabaseAddress) -> dict[str, str]:
    """What made the tables and indexes, defaults and constraints included, by name."""
    with closing(sqlite3.connect(address.file)) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: " ".join(sql.split()) for name, sql in made}


@pytest.mark.parametrize("service", STORES)
def test_tables_that_are_made_at_once_are_those_of_all_revisions(tmp_path: Path, service: str) -> None:
    made: list[dict[str, str]] = []
    for metadata in (None, metadata_of(service)):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        address = DatabaseAddress(service, folder)
        open_database(address, metadata)
        made.append(statements(address))
    assert made[0] == made[1]
    assert len(made[0]) > 1


def test_a_database_that_was_made_at_once_is_upgraded_by_a_later_version(locate: Locate, tmp_path: Path) -> None:
    address = locate("profiler")
    open_database(address, metadata_of("profiler"))
    put_document(address)
    upgrade_database(address, with_next(tmp_path), metadata=metadata_of("profiler"))
    assert documents(address) == [{"name": "desk", "body": "changed", "first": None, "second": None}]


@pytest.mark.parametrize("version", EARLIER)
@pytest.mark.parametrize("service", STORES)
def test_tables_of_earlier_versions_become_those_of_the_code(tmp_path: Path, service: str, version: str) -> None:
    address = DatabaseAddress(service, tmp_path)
    lay(EARLIER[version] / f"{service}.sql", address)
    before = rows(address)
    assert sum(before.values()) > 0
    open_database(address)
    assert differences(address) == []
    after = rows(address)
    assert {name: after[name] for name in before} == before
    (copy,) = copies(address)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone() == (
            0,
        )
        assert {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in before} == before
    open_database(address)
    assert copies(address) == [copy], "nothing was left to upgrade"


def test_an_upgrade_keeps_the_last_copies(locate: Locate, tmp_path: Path) -> None:
    address = locate("profiler")
    open_database(address)
    put_document(address)
    clock = ManualClock(1.0)
    for _ in range(5):
        upgrade_database(address, with_next(tmp_path), clock)
        assert documents(address) == [{"name": "desk", "body": "changed", "first": None, "second": None}]
        with open_engine(address).begin() as connection:
            for statement in ("DROP COLUMN first", "DROP COLUMN second"):
                connection.execute(text(f"ALTER TABLE profiler_documents {statement}"))
            connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
            connection.execute(text("UPDATE profiler_documents SET body = 'again'"))
        clock.advance(60.0)
    assert len(copies(address)) == 3
    engine = create_engine(f"sqlite:///{copies(address)[-1]}")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name, body FROM profiler_documents")).all() == [("desk", "again")]
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "0002"


def test_tables_of_a_later_version_are_refused_and_left_alone(locate: Locate, tmp_path: Path) -> None:
    address = locate("profiler")
    upgrade_database(address, with_next(tmp_path))
    put_document(address)
    before = documents(address)
    with pytest.raises(SchemaVersionError, match=r"revision 0003, and this version of MalleTrain knows up to 0002"):
        open_database(address)
    assert documents(address) == before


@pytest.mark.processes
def test_killed_in_the_middle_nothing_has_changed_and_the_next_attempt_succeeds(locate: Locate, tmp_path: Path) -> None:
    address = locate("profiler")
    open_database(address)
    put_document(address)
    history = with_next(tmp_path)
    words = [str(tmp_path), address.url, str(address.password_file or ""), str(tmp_path / "later")]
    upgrader = subprocess.Popen([sys.executable, "-c", UPGRADER, *words], env={**os.environ, "WAIT_IN": str(tmp_path)})
    wait_until(lambda: (tmp_path / "in the middle").exists() or upgrader.poll() is not None, 60)
    assert upgrader.poll() is None
    upgrader.send_signal(signal.SIGKILL)
    upgrader.wait()
    wait_until(lambda: documents(address) == [{"name": "desk", "body": "{}"}], 30, "the half upgrade is undone")
    upgrade_database(address, history)
    assert documents(address) == [{"name": "desk", "body": "changed", "first": None, "second": None}]


@pytest.mark.processes
def test_of_two_that_upgrade_at_once_one_waits(locate: Locate, tmp_path: Path) -> None:
    address = locate("profiler")
    open_database(address)
    put_document(address)
    with_next(tmp_path)
    words = [str(tmp_path), address.url, str(address.password_file or ""), str(tmp_path / "later")]
    upgraders = [subprocess.Popen([sys.executable, "-c", UPGRADER, *words]) for _ in range(3)]
    assert [upgrader.wait(60) for upgrader in upgraders] == [0, 0, 0]
    assert documents(address) == [{"name": "desk", "body": "changed", "first": None, "second": None}]
    assert len(copies(address)) == 1


def test_an_account_that_may_make_no_schemas_uses_those_made_for_it(postgresql: PostgresServer, tmp_path: Path) -> None:
    url = postgresql.new_database()
    database = url.rpartition("/")[2]
    password_file = tmp_path / "password"
    password_file.write_text("plain\n")
    role = f"role_{database}"
    postgresql.query(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    postgresql.query(f"CREATE SCHEMA malletrain_monitor AUTHORIZATION {role}", database)
    address = DatabaseAddress("monitor", tmp_path, url.replace("malletrain@", f"{role}@"), password_file)
    open_database(address)
    assert differences(address) == []


def test_an_account_without_schemas_is_told_so(postgresql: PostgresServer, tmp_path: Path) -> None:
    url = postgresql.new_database()
    role = f"role_{url.rpartition('/')[2]}"
    (tmp_path / "password").write_text("plain\n")
    postgresql.query(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    address = DatabaseAddress("monitor", tmp_path, url.replace("malletrain@", f"{role}@"), tmp_path / "password")
    with pytest.raises(MalleTrainError, match="can't be used: permission denied"):
        open_database(address)


@pytest.mark.processes
def test_a_start_waits_for_a_server_that_starts_later(postgresql: PostgresServer, tmp_path: Path) -> None:
    address = postgresql.address("monitor", tmp_path)
    postgresql.kill()
    opening = threading.Thread(target=open_database, args=(address,))
    opening.start()
    try:
        opening.join(1)
        assert opening.is_alive()
    finally:
        postgresql.start()
        opening.join(60)
    assert not opening.is_alive()
    assert differences(address) == []
