"""What `database_url` may be, and that no password in it or beside it is ever shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from malletrain.cli.shared.settings import load
from malletrain.runtime.config import Settings
from malletrain.runtime.database.address import DatabaseAddress, check_database_url
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.errors import InvalidInputError
from tests.support.ports import free_port
from tests.support.postgresql import PostgresServer

SECRET = "pa55word"


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "malletrain.toml"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_url_of_postgresql_is_taken(tmp_path: Path, scheme: str) -> None:
    settings = read(tmp_path, f'database_url = "{scheme}://ada@host:5433/db?sslmode=verify-full"')
    address = settings.database("monitor")
    assert address.url == "postgresql+psycopg://ada@host:5433/db?sslmode=verify-full"
    assert address.schema == "malletrain_monitor"


def test_a_socket_can_be_named() -> None:
    assert check_database_url("postgresql:///db?host=/run/postgresql").startswith("postgresql+psycopg:///db?host=")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@host/db",
        f"postgresql://ada@host/db?password={SECRET}",
        f"postgresql://ada:{SECRET}@host:port/db",
        f"postgresql://ada:{SECRET}@host",
        f"mysql://ada:{SECRET}@host/db",
        f"sqlite:///{SECRET}.sqlite",
        f"postgresql+psycopg2://ada:{SECRET}@host/db",
        f"postgresql://ada@host/db?options={SECRET}",
        f"://{SECRET}",
        SECRET,
    ],
)
def test_any_other_url_is_refused_without_being_repeated(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^database_url: expected ") as refused:
        read(tmp_path, f'database_url = "{url}"')
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_url_does_not_show_in_the_settings(tmp_path: Path) -> None:
    settings = read(tmp_path, 'database_url = "postgresql://ada@secret-host/db"')
    assert "secret-host" not in repr(settings)
    assert "secret-host" not in settings.model_dump_json()


def test_a_password_needs_a_url(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected database_url beside database_password_file"):
        read(tmp_path, 'database_password_file = "/run/secrets/db"')


def test_without_the_driver_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "malletrain.runtime.database.postgresql", raising=False)
    with pytest.raises(InvalidInputError, match=r"pip install 'malletrain\[postgresql\]'"):
        open_engine(DatabaseAddress("monitor", tmp_path, "postgresql+psycopg://ada@host/db"))


def test_a_password_file_is_read_at_each_connection(postgresql: PostgresServer, tmp_path: Path) -> None:
    url = postgresql.new_database()
    path = tmp_path / "password"
    for content, expected in (
        (None, "database_password_file: expected a readable file"),
        ("\n", "database_password_file: expected a password in its first line"),
    ):
        if content is not None:
            path.write_text(content)
        with pytest.raises(InvalidInputError, match=expected):
            open_engine(DatabaseAddress("monitor", tmp_path, url, path)).connect()
    engine = open_engine(DatabaseAddress("monitor", tmp_path, url, path))
    path.write_text(postgresql.password_file.read_text())
    engine.connect().close()


def test_a_wrong_password_is_not_shown(
    postgresql: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    engine = open_engine(DatabaseAddress("monitor", tmp_path, postgresql.new_database(), path))
    with pytest.raises(DatabaseUnavailableError) as refused:
        engine.connect()
    engine.dispose()
    assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r}"
    shown = capsys.readouterr()
    assert "password authentication failed" in shown.out + shown.err
    assert SECRET not in shown.out + shown.err


def test_an_unknown_option_is_told(postgresql: PostgresServer, tmp_path: Path) -> None:
    address = DatabaseAddress("monitor", tmp_path, f"{postgresql.new_database()}?colour=blue", postgresql.password_file)
    with pytest.raises(InvalidInputError, match="database_url: expected options that libpq knows"):
        open_engine(address).connect()


def test_nobody_there(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://ada@127.0.0.1:{free_port()}/db"
    engine = open_engine(DatabaseAddress("monitor", tmp_path, url))
    for _ in range(3):
        with pytest.raises(DatabaseUnavailableError, match="the database of monitor does not answer"):
            engine.connect()
    engine.dispose()
