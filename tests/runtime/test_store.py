from __future__ import annotations

from pathlib import Path

from sqlalchemy import text

from malletrain.runtime.store import open_engine


def test_sqlite_is_opened_safely_and_its_folder_is_made(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/a/b/x.sqlite")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 5000
