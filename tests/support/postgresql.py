"""A real PostgreSQL server for tests, on a port of loopback, with a password."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from malletrain.runtime.database.address import DatabaseAddress
from tests.support.ports import free_port
from tests.support.waiting import wait_until

Locate = Callable[[str], DatabaseAddress]
"""Makes the address of a service's database."""

_USER = "malletrain"


def _programs() -> Path | None:
    """Folder of the newest server that is installed; Debian keeps it out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def why_no_server() -> str:
    """Why no server can be run here; empty if one can."""
    if _programs() is None:
        return "no PostgreSQL server is installed here"
    try:
        import psycopg  # noqa: F401 - is it there?
    except ModuleNotFoundError:
        return "psycopg is not installed"
    if os.geteuid() == 0 and not _has_account():
        return "PostgreSQL does not run as root, and there is no account postgres"
    return ""


def _has_account() -> bool:
    return any(entry.pw_name == "postgres" for entry in pwd.getpwall())


class PostgresServer:
    """A server of its own account, whose files lie in a folder of their own.

    Attributes:
        folder: Its files.
        password_file: The password of its only user, who may make databases.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.password_file = folder / "password"
        self._programs = _programs() or Path()
        self._process: subprocess.Popen[bytes] | None = None

    def initialise(self) -> None:
        """Make the files: those of the server are its account's, the password that clients read stays ours."""
        own, data = self.folder / "first-password", self.folder / "data"
        for path in (self.password_file, own):
            path.touch(mode=0o600)
        password = secrets.token_hex(8) + "\n"
        self.password_file.write_text(password)
        own.write_text(password)
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.folder.chmod(0o711)
            account = pwd.getpwnam("postgres")
            for path in (data, own):
                os.chown(path, account.pw_uid, account.pw_gid)
        options = ["--auth=scram-sha-256", f"--username={_USER}", f"--pwfile={own}", "--no-sync"]
        subprocess.run(self._command("initdb", *options), check=True, stdout=subprocess.DEVNULL, cwd=self.folder)
        own.unlink()

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 60,
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-p", str(self.port), *words), stdout=log, stderr=log, cwd=self.folder
            )
        wait_until(self._answers, 30, "the server answers")

    def kill(self) -> None:
        """Kill the server's first process with SIGKILL; its others end by themselves, as after a crash."""
        assert self._process is not None
        others = self._processes()
        self._process.kill()
        self._process.wait()
        # Until then a new one would refuse to start: the old ones still have its shared memory.
        psutil.wait_procs(others, 30)

    def hang(self) -> None:
        """Stop all its processes, so that connections are accepted and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """The opposite of `hang`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it at once; nobody needs its files any more."""
        if self._process is not None and self._process.poll() is None:
            self.go_on()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)

    def end_connections(self) -> int:
        """Have the server end all connections but our own; returns how many."""
        return len(
            self.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = "
                "'client backend' AND pid <> pg_backend_pid()"
            )
        )

    def query(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement; returns the rows."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=_USER,
            password=self.password_file.read_text().strip(),
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        ) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def url(self, database: str) -> str:
        """URL of a database."""
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database; returns its URL."""
        name = f"d{secrets.token_hex(6)}"
        self.query(f"CREATE DATABASE {name}")
        return self.url(name)

    def address(self, service: str, state_dir: Path) -> DatabaseAddress:
        """A service's database in a new database of the server."""
        return DatabaseAddress(service, state_dir, self.new_database(), self.password_file)

    def _answers(self) -> bool:
        import psycopg

        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            return bool(self.query("SELECT 1"))
        except psycopg.OperationalError:
            return False

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def _signal(self, number: int) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _command(self, program: str, *words: str) -> list[str]:
        """How to start one of its programs: PostgreSQL refuses to run as root.

        Not by the arguments of `subprocess` for that: they need a fork of this process, which gRPC's threads do not
        survive.
        """
        account = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return [*account, str(self._programs / program), "-D", str(self.folder / "data"), *words]


@contextmanager
def postgresql_server() -> Iterator[PostgresServer]:
    """A running server; skips the test where there can be none."""
    reason = why_no_server()
    if reason:
        pytest.skip(reason)
    # Not in pytest's folder, which other accounts can't enter.
    folder = Path(tempfile.mkdtemp(prefix="malletrain-postgresql-"))
    server = PostgresServer(folder, free_port())
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
