from __future__ import annotations

import stat
from pathlib import Path

from sqlalchemy import text

from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.engine import open_engine


def test_nobody_else_reads_a_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    path.touch(0o644)
    with open_engine(DatabaseAddress("jobs", tmp_path)).begin() as connection:
        connection.execute(text("CREATE TABLE a (b INTEGER)"))
        files = list(tmp_path.iterdir())
        assert {file.name for file in files} == {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_sqlite_is_opened_safely_and_its_folder_is_made(tmp_path: Path) -> None:
    engine = open_engine(DatabaseAddress("x", tmp_path / "a?b#c" / "100%d"))
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 5000
