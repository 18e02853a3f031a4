"""A small suite of tests that runs with the plugins of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_suite(folder: Path, plugin: str, suite: str, *options: str, **environment: str) -> tuple[int, str]:
    """Run tests with pytest; returns its status and what it prints.

    Args:
        folder: Where the suite is written.
        plugin: Module of `tests.support` that the suite is run with.
        suite: Source of the tests.
        *options: Options of pytest.
        **environment: Variables besides those of this process.
    """
    (folder / "conftest.py").write_text(f'pytest_plugins = ["tests.support.{plugin}"]\n')
    (folder / "test_suite.py").write_text(suite)
    own = ["-p", "no:cacheprovider", "--rootdir", str(folder), "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *own, *options, str(folder)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
