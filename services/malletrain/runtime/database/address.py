"""Where the database of a service is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POSTGRESQL_DRIVER = "postgresql+psycopg"
ANSWER_SECONDS = 2
"""The longest wait for a connection of PostgreSQL, and for a transaction on an event loop."""
_EXAMPLE = "postgresql+psycopg://USER@HOST/DATABASE"


@dataclass(frozen=True)
class DatabaseAddress:
    """The database of one service. It contains no secret.

    Attributes:
        service: Name of the service.
        state_dir: The state folder: SQLite's file lies there, and copies made before an upgrade.
        url: URL of the PostgreSQL database that the services share; empty: SQLite.
        password_file: File with the password of its user; None: as libpq finds it.
    """

    service: str
    state_dir: Path
    url: str = ""
    password_file: Path | None = None

    @property
    def file(self) -> Path:
        """SQLite's file."""
        return self.state_dir / f"{self.service}.sqlite"

    @property
    def schema(self) -> str:
        """The service's schema in PostgreSQL."""
        return f"malletrain_{self.service}"

    def __str__(self) -> str:
        """The address without a password, for messages and logs."""
        return f"schema {self.schema} of {self.url}" if self.url else str(self.file)


def check_database_url(url: str) -> str:
    """The URL of a PostgreSQL database without a password; empty for SQLite.

    Raises:
        ValueError: it is anything else. The message never has the URL, which may hold a password by mistake.
    """
    if not url:
        return url
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"expected {_EXAMPLE}, or nothing for SQLite in the state folder") from None
    if parsed.drivername not in ("postgresql", POSTGRESQL_DRIVER):
        raise ValueError(f"expected {_EXAMPLE}, or nothing for SQLite: other databases are not supported")
    if parsed.password is not None or "password" in parsed.query:
        raise ValueError("expected a URL without a password, which belongs into database_password_file")
    if "options" in parsed.query:
        raise ValueError("expected a URL without options: MalleTrain sets those of its connections")
    if not parsed.database:
        raise ValueError(f"expected the name of a database: {_EXAMPLE}")
    return parsed.set(drivername=POSTGRESQL_DRIVER).render_as_string()
