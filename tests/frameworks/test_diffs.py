"""The diff that each README prints is the real one, and has at most five lines that are new."""

from __future__ import annotations

import re

import pytest

from tests.frameworks.diffs import EXAMPLES, real_diff

NAMES = ("accelerate", "fsdp2", "lightning", "transformers")


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_prints_the_real_diff(name: str) -> None:
    printed = re.search(r"```diff\n(.*?)```", (EXAMPLES / name / "README.md").read_text(), re.DOTALL)
    assert printed is not None
    assert printed[1].splitlines() == real_diff(name)


@pytest.mark.parametrize("name", NAMES)
def test_at_most_five_lines_are_new(name: str) -> None:
    assert 1 <= sum(line.startswith("+") for line in real_diff(name)) <= 5
