"""The second try of a test that fails."""

from __future__ import annotations

from pathlib import Path

from tests.support.suites import run_suite

SUITE = """
import pytest

started = []

@pytest.fixture(scope="module")
def system():
    started.append("system")
    yield len(started)
    started.append("end")

@pytest.mark.system
def test_that_fails_at_first(system):
    assert started == ["system", "end", "system"], "what it finds at first"

def test_after_it_on_the_same_fixtures(system):
    assert system == 3

@pytest.mark.processes
def test_that_always_fails():
    assert False, "as it should"

tries = []

def test_of_pure_code_that_would_pass_at_its_second_try():
    tries.append(1)
    assert len(tries) == 2
"""


def test_a_failed_test_with_real_processes_is_tried_again_on_fresh_fixtures_and_no_other(tmp_path: Path) -> None:
    status, printed = run_suite(tmp_path, "second_try", SUITE)
    assert status == 1
    assert "2 failed, 2 passed, 2 rerun" in printed, printed
    assert "RERUN" in printed
    assert "what it finds at first" in printed, "the first failure is shown though the second try passed"
