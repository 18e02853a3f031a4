"""Batch schedulers that lie beside the project on some machines: `python -m tests.support.servers pbs|slurm`.

Unpacks one into its fixed folder below /opt, where there is none yet, with the packages of Debian that it needs, and
prints the folder. Exits with 3, and says why, where that can't be done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.shared import SHARED

SKIPPED = 3


@dataclass(frozen=True)
class Unpackable:
    """A scheduler that needs only to be unpacked.

    Attributes:
        archive: A pattern below the folder of servers.
        folder: Where it belongs.
        program: One of its programs, in that folder.
        packages: Debian's, that it needs.
    """

    archive: str
    folder: Path
    program: str
    packages: tuple[str, ...]


KNOWN = {
    "pbs": Unpackable(
        "openpbs-*-debian12-x86_64.tar.xz",
        Path("/opt/pbs"),
        "sbin/pbs_server.bin",
        (
            *("postgresql", "postgresql-contrib", "libedit2", "libical3", "libhwloc15", "libcjson1", "libpython3.11"),
            *("libexpat1", "libpq5", "iproute2", "procps", "xz-utils"),
        ),
    ),
    "slurm": Unpackable(
        "slurm-25.05.8-debian12-x86_64.tar.xz",
        Path("/opt/slurm-25.05.8"),
        "sbin/slurmctld",
        ("munge", "libmunge2", "libjson-c5", "procps", "xz-utils"),
    ),
}


def why_not(server: Unpackable) -> str:
    """Why it can't be unpacked here; empty if it can."""
    if os.geteuid() != 0:
        return f"only root can unpack it into {server.folder}"
    if not _archives(server):
        return f"{server.archive} is not beside this checkout (set MALLETRAIN_SHARED to its folder)"
    if shutil.which("apt-get") is None or os.uname().machine != "x86_64":
        return "it is made for Debian 12 on x86_64"
    return ""


def unpack(server: Unpackable) -> None:
    """Unpack it, and install what it needs.

    Raises:
        subprocess.CalledProcessError: a command fails.
    """
    installed = subprocess.run(["dpkg", "--status", *server.packages], capture_output=True, check=False)
    if installed.returncode:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=sys.stderr)
        argv = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *server.packages]
        subprocess.run(argv, check=True, env=environment, stdout=sys.stderr)
    subprocess.run(["tar", "-C", "/", "--no-overwrite-dir", "-xJf", str(_archives(server)[-1])], check=True)


def main(name: str) -> int:
    """Unpack a scheduler by its name; returns an exit status."""
    server = KNOWN[name]
    if not (server.folder / server.program).exists():
        if reason := why_not(server):
            print(f"no {name} here: {reason}", file=sys.stderr)
            return SKIPPED
        unpack(server)
    print(server.folder)
    return 0


def _archives(server: Unpackable) -> list[Path]:
    return sorted((SHARED / "schedulers" / "servers").glob(server.archive))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
