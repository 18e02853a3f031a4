"""Code that runs as another account of this machine."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

needs_another_account = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run something as another account")


def let_others_through(folder: Path) -> None:
    """Let other accounts through the folders of a test, and nothing else: one of them may be /tmp."""
    for place in (folder, *folder.parents):
        mode = stat.S_IMODE(place.stat().st_mode)
        if not mode & stat.S_IXOTH:
            place.chmod(mode | stat.S_IXOTH)


_BECOME = """
import encodings.idna, os, socket, ssl, sys
{imports}
os.setgroups([]); os.setgid({group}); os.setuid({user}); os.chdir(sys.argv.pop(1))
"""
"""Imports come first: others may not be able to read the modules, say below a home that is closed to them."""


def run_as_number(
    user: int, folder: Path, code: str, *arguments: object, imports: str = "", group: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user, who need not have an account.

    Args:
        user: Number of the user.
        folder: Working directory.
        code: What is run, after modules are imported and the rights are gone; it may use os, socket, ssl and sys.
        *arguments: Its `sys.argv[1:]`.
        imports: Lines that are run before the rights are gone.
        group: Number of the group; by default that of the user.
    """
    program = _BECOME.format(user=user, group=user if group is None else group, imports=imports) + code
    return subprocess.run(
        [sys.executable, "-P", "-c", program, str(folder), *map(str, arguments)],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/dev/null/home"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def as_nobody(code: str, *arguments: object, imports: str = "") -> str:
    """Run Python code as the account nobody, as `run_as_number` does; returns what it prints.

    Raises:
        AssertionError: it fails.
    """
    account = pwd.getpwnam("nobody")
    done = run_as_number(account.pw_uid, Path("/"), code, *arguments, imports=imports, group=account.pw_gid)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
