"""The diff that each README prints is the real one, and has as few new lines as the docs say."""

from __future__ import annotations

import re

import pytest

from tests.frameworks.diffs import EXAMPLES, real_diff

NEW_LINES = {"accelerate": 3, "deepspeed": 6, "fsdp2": 5, "lightning": 4, "transformers": 2}
"""As docs/bring-your-script.md has them."""


@pytest.mark.parametrize("name", NEW_LINES)
def test_the_readme_prints_the_real_diff(name: str) -> None:
    printed = re.search(r"```diff\n(.*?)```", (EXAMPLES / name / "README.md").read_text(), re.DOTALL)
    assert printed is not None
    assert printed[1].splitlines() == real_diff(name)


@pytest.mark.parametrize("name", NEW_LINES)
def test_the_docs_say_how_many_lines_are_new(name: str) -> None:
    assert sum(line.startswith("+") for line in real_diff(name)) == NEW_LINES[name]
    rows = (EXAMPLES.parent / "docs" / "bring-your-script.md").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("| ") and f"(../examples/{name}))" in row and row.count("|") == 4]
    assert row.split("|")[3].strip() == str(NEW_LINES[name])
