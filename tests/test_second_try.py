"""The second try of a test that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = "from tests.support.second_try import *"
SUITE = """
import pytest

started = []

@pytest.fixture(scope="module")
def system():
    started.append("system")
    yield len(started)
    started.append("end")

def test_that_fails_at_first(system):
    assert started == ["system", "end", "system"], "what it finds at first"

def test_after_it_on_the_same_fixtures(system):
    assert system == 3

def test_that_always_fails():
    assert False, "as it should"
"""


def test_a_failed_test_is_tried_again_on_fresh_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    root = Path(__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert "1 failed, 2 passed, 2 rerun" in done.stdout, done.stdout
    assert "RERUN" in done.stdout
    assert "what it finds at first" in done.stdout, "the first failure is shown though the second try passed"
