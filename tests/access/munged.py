"""A MUNGE of the test's own: private socket, private key."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from malletrain.runtime.access.munge import Munge
from tests.support.waiting import wait_until

PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
NOBODY = 65534


@contextmanager
def munged(folder: Path) -> Iterator[Munge]:
    """Commands of a MUNGE that runs until the block is left; as an unprivileged user where we are root.

    Skips the test where MUNGE is not installed.
    """
    found = {name: shutil.which(name, path=PATH) for name in ("munge", "unmunge", "munged")}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"MUNGE is not installed: {', '.join(missing)} not found (apt-get install munge)")
    # A short path: a Unix socket's is limited.
    key, socket = folder / "munge.key", folder / "s"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    as_nobody = os.geteuid() == 0
    if as_nobody:
        os.chown(folder, NOBODY, NOBODY)
        os.chown(key, NOBODY, NOBODY)
    folder.chmod(0o755)
    files = {"key-file": key, "socket": socket, "pid-file": folder / "pid", "seed-file": folder / "seed"}
    options = [f"--{name}={path}" for name, path in files.items()]
    # --force: folders of tests are in /tmp, which everybody may write to.
    process = subprocess.Popen(
        [str(found["munged"]), "--foreground", "--force", *options],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "munged.log").open("wb"),
        user=NOBODY if as_nobody else None,
        group=NOBODY if as_nobody else None,
        extra_groups=[] if as_nobody else None,
    )
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, 10, "munged")
        assert process.poll() is None, (folder / "munged.log").read_text()
        yield Munge(str(found["munge"]), str(found["unmunge"]), str(socket))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
