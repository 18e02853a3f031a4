"""A real sshd on loopback, that lets this user in by a key of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
"""


@contextmanager
def ssh_command(folder: Path) -> Iterator[tuple[str, ...]]:
    """The command by which every node name leads to this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "config").write_text(_CONFIG.format(port=port, folder=folder))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    assert SSHD is not None
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    options = {
        "Port": port,
        "HostName": "127.0.0.1",
        "IdentityFile": folder / "user",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
    }
    try:
        wait_until(lambda: b"listening" in (folder / "sshd.log").read_bytes(), 20, "sshd")
        yield ("ssh", *(f"-o{name}={value}" for name, value in options.items()))
    finally:
        server.kill()
        server.wait()
