"""Code that runs as another account of this machine."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

needs_another_account = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run something as another account")

_BECOME = "import encodings.idna, os, socket, sys\nos.setgroups([])\nos.setgid({gid})\nos.setuid({uid})\n"
"""The modules first: the other account may not be able to read them."""


def as_nobody(code: str, *arguments: object) -> str:
    """Run Python code, which may use os, socket and sys, as the account nobody; returns what it prints.

    Raises:
        AssertionError: it fails.
    """
    account = pwd.getpwnam("nobody")
    program = _BECOME.format(uid=account.pw_uid, gid=account.pw_gid) + code
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
