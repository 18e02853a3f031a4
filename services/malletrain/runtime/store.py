"""Databases: SQLite by default, others by their SQLAlchemy URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateColumn


def open_engine(url: str) -> Engine:
    """An engine for the database of a service. The folder of a SQLite file is made if needed.

    SQLite runs in WAL mode with foreign keys on and waits up to 5 s for another writer. A committed transaction
    survives a kill of the process.
    """
    parsed = make_url(url)
    engine = create_engine(parsed)
    if parsed.get_backend_name() != "sqlite":
        return engine
    if parsed.database and parsed.database != ":memory:":
        _make_private(Path(parsed.database))

    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine, "connect", prepare)
    return engine


def _make_private(database: Path) -> None:
    """Only our account reads a database: it has what users submit. SQLite gives its other files the same mode."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.open("ab"):
        pass
    for path in database.parent.glob(f"{database.name}*"):
        path.chmod(0o600)


def create_tables(engine: Engine, metadata: MetaData) -> None:
    """Make the tables that are missing, and add the columns that a table of an earlier version lacks.

    A column that was added later must be nullable or have a server default.
    """
    metadata.create_all(engine)
    known = inspect(engine)
    for table in metadata.sorted_tables:
        present = {column["name"] for column in known.get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                definition = CreateColumn(column).compile(dialect=engine.dialect)
                name = engine.dialect.identifier_preparer.format_table(table)
                with engine.begin() as connection:
                    connection.execute(text(f"ALTER TABLE {name} ADD COLUMN {definition}"))
