"""What every account of this machine can use: a folder, and a Python with all that tests import."""

from __future__ import annotations

import os
import pwd
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_CHECK = "import grpc, malletrain.supervisor, malletrain.client, malletrain.cli.main"


@contextmanager
def folder_of_everybody() -> Iterator[Path]:
    """A folder that other users may enter, and so may they the folders above it. Those of pytest are closed to them."""
    with tempfile.TemporaryDirectory(prefix="malletrain-access-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def python_of_everybody(folder: Path, user: str) -> Path:
    """An interpreter that users can run, with the packages of this one. Skips the test where there is none.

    The interpreter that runs the tests may be below a home folder that is closed to others.

    Args:
        folder: Where its environment is made.
        user: Who must be able to run it.
    """
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    for interpreter in (Path(sys.executable).resolve(), system):
        if not interpreter.exists():
            continue
        environment = folder / f"python-{interpreter.parent.parent.name}"
        subprocess.run([interpreter, "-m", "venv", "--without-pip", environment], check=False, capture_output=True)
        packages = next(environment.glob("lib/python3.*/site-packages"), None)
        if packages is None:
            continue
        lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
        (packages / "tests.pth").write_text("\n".join([*lines, str(ROOT)]) + "\n")
        found = environment / "bin/python"
        if run_as(user, [str(found), "-c", _CHECK]).returncode == 0:
            return found
    pytest.skip(f"{user} can run no Python with the packages of this one")


def as_user(user: str) -> list[str]:
    """What goes before a command to make it a user's. setpriv itself still finds programs with the rights of root."""
    entry = pwd.getpwnam(user)
    become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    return [*become, "/bin/sh", "-c", 'exec "$@"', "sh"]


def run_as(
    user: str, command: list[str], environment: dict[str, str] | None = None, cwd: Path = Path("/")
) -> subprocess.CompletedProcess[str]:
    """Run a command as another user. Not by `subprocess` itself, which would fork: gRPC does not survive that."""
    return subprocess.run(
        [*as_user(user), *command],
        env={"PATH": os.defpath, "HOME": "/", **(environment or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
