"""Databases: SQLite by default, any other by its SQLAlchemy URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url


def open_engine(url: str) -> Engine:
    """An engine for a service's own database; the folder of a SQLite file is made where needed.

    SQLite runs in WAL mode with foreign keys on and waits up to 5 s for another writer. A committed transaction
    survives a kill of the process.
    """
    parsed = make_url(url)
    engine = create_engine(parsed)
    if parsed.get_backend_name() != "sqlite":
        return engine
    if parsed.database and parsed.database != ":memory:":
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)

    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine, "connect", prepare)
    return engine
