"""CI fails for tests that skip for reasons that nobody has listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import EXPECTED, STRICT, ExpectedSkip, unexpected
from tests.support.suites import run_suite

UNEXPECTED = """
import pytest

def test_that_skips():
    pytest.skip("nobody has listed this")

def test_that_passes():
    pass
"""
OF_A_MODULE = """
import pytest

pytest.importorskip("not_installed_anywhere", reason="nobody has listed this")
"""
EXPECTED_ONE = """
import pytest

def test_that_skips():
    pytest.skip("this machine has no IPv6")

@pytest.mark.xfail(reason="nobody has listed this")
def test_that_is_known_to_fail():
    assert False
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
@pytest.mark.parametrize("suite", [UNEXPECTED, OF_A_MODULE], ids=["test", "module"])
def test_a_skip_that_is_not_listed_fails_the_run(tmp_path: Path, suite: str, options: tuple[str, ...]) -> None:
    status, printed = run_suite(tmp_path, "skips", suite, *options, **{STRICT: "1"})
    assert status == 1, printed
    assert "nobody has listed this" in printed.partition("skips that are not expected")[2]


def test_a_skip_that_is_listed_is_accepted(tmp_path: Path) -> None:
    status, printed = run_suite(tmp_path, "skips", EXPECTED_ONE, **{STRICT: "1"})
    assert status == 0, printed


def test_outside_of_ci_tests_skip_as_they_like(tmp_path: Path) -> None:
    status, printed = run_suite(tmp_path, "skips", UNEXPECTED, **{STRICT: "0"})
    assert status == 0, printed


def test_a_reason_that_is_not_true_of_this_machine_is_not_accepted() -> None:
    has, lacks = (ExpectedSkip("needs .*", "why", lambda lacking=lacking: lacking) for lacking in (False, True))
    assert unexpected("needs it", [has])
    assert not unexpected("needs it", [has, lacks])
    assert unexpected("it needs it", [lacks]), "the whole reason is compared"


def test_every_listed_skip_says_why() -> None:
    assert all(skip.why for skip in EXPECTED)
    assert len({skip.pattern for skip in EXPECTED}) == len(EXPECTED)
