"""The revisions of a service's tables, as its package ships them in the folder `migrations`.

Alembic brings tables from one to the next. It is imported where that has to be done: it takes 9 MiB in each service and
0.2 s or more of its start. Nearly every start finds the tables of this version or none, and then makes them at once.
"""

from __future__ import annotations

import ast
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text
from sqlalchemy.schema import CreateColumn

from malletrain.runtime.database.errors import SchemaVersionError

_ENVIRONMENT = Path(__file__).with_name("migrations")
_SERVICES = Path(__file__).parents[2]
_RECORD = "alembic_version"


class SchemaHistory:
    """Revisions of one service's tables, oldest first, and how to go from one to the next."""

    def __init__(self, service: str, folder: Path | None = None) -> None:
        """
        Args:
            service: Name of the service.
            folder: Where they lie; None: those of this version.
        """
        self._service = service
        self._folder = folder or _SERVICES / service / "migrations"
        self.revisions = _in_order(dict(_revisions_in(path) for path in self._folder.glob("*.py")))

    @property
    def newest(self) -> str:
        """The revision that this version uses."""
        return self.revisions[-1]

    def check(self, revision: str | None, place: object) -> None:
        """Check that tables can be used or upgraded.

        Args:
            revision: Their revision; None: there are none, or they are from before there were revisions.
            place: Where they are, for the message.

        Raises:
            SchemaVersionError: their revision is not known.
        """
        if revision is not None and revision not in self.revisions:
            raise SchemaVersionError(
                f"the tables of {self._service} in {place} are of revision {revision}, and this version of MalleTrain "
                f"knows up to {self.newest}: use the version that wrote them or a later one, or restore a backup that "
                "was made before (malletrain restore)"
            )

    def create(self, connection: Connection, metadata: MetaData) -> None:
        """Make the tables of the newest revision where there are none, in the connection's transaction.

        Args:
            connection: The database.
            metadata: The tables as the code has them. All revisions, one after the other, would make the same.
        """
        metadata.create_all(connection)
        version, key = Column("version_num", String(32)), PrimaryKeyConstraint("version_num", name=f"{_RECORD}_pkc")
        record = Table(_RECORD, MetaData(), version, key)  # as Alembic makes it
        record.create(connection)
        connection.execute(insert(record).values(version_num=self.newest))

    def upgrade(self, connection: Connection, revision: str = "head") -> None:
        """Bring the tables to a revision, in the connection's transaction."""
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(_ENVIRONMENT))
        config.set_main_option("path_separator", "newline")
        config.set_main_option("version_locations", str(self._folder))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _revisions_in(file: Path) -> tuple[str | None, str]:
    """The revision that a file starts from, None for the first, and the one that it leads to."""
    values = {
        name.id: ast.literal_eval(entry.value)
        for entry in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(entry, ast.Assign)
        for name in entry.targets
        if isinstance(name, ast.Name) and name.id in ("revision", "down_revision")
    }
    return values["down_revision"], values["revision"]


def _in_order(following: dict[str | None, str]) -> tuple[str, ...]:
    revisions: list[str] = []
    revision = following.get(None)
    while revision is not None:
        revisions.append(revision)
        revision = following.get(revision)
    return tuple(revisions)


def revision_of(connection: Connection) -> str | None:
    """The revision of a service's tables; None where none is recorded."""
    if not inspect(connection).has_table(_RECORD):
        return None
    revision: str | None = connection.scalar(text(f"SELECT version_num FROM {_RECORD}"))
    return revision


def complete_tables(connection: Connection, metadata: MetaData) -> None:
    """Make the tables, columns and indexes that are missing: for the first revision, before which there was none.

    A column that can be missing must be nullable or have a server default.
    """
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        _add_columns(connection, table)
        _add_indexes(connection, table)


def _add_columns(connection: Connection, table: Table) -> None:
    present = {column["name"] for column in inspect(connection).get_columns(table.name)}
    name = connection.dialect.identifier_preparer.format_table(table)
    for column in table.columns:
        if column.name not in present:
            definition = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")


def _add_indexes(connection: Connection, table: Table) -> None:
    present = {index["name"] for index in inspect(connection).get_indexes(table.name)}
    for index in table.indexes:
        if index.name not in present:
            index.create(connection)
