"""Users of this machine who have no account and no rights, only a number; and what root runs in their folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

STRANGER, VICTIM = 54_321, 54_322


def run_command(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `malletrain` in a folder, as the account that runs the tests."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "malletrain.cli.main", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": "/dev/null/home", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def give(user: int, *paths: Path) -> None:
    """Have files and folders belong to a user."""
    for path in paths:
        os.chown(path, user, user, follow_symlinks=False)
