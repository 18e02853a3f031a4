"""Pages look the same on GitHub and on the site, whose Markdown is stricter about lists."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, name_of, prose

_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lists_look_the_same_on_github_and_on_the_site(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = prose(text).splitlines()
    for before, line in itertools.pairwise(lines):
        if _ITEM.match(line) and before.strip():
            assert _ITEM.match(before) or before.startswith(" "), f"a list needs an empty line before it: {line!r}"
    for indent in re.findall(r"^( +)```\w+$", text, re.MULTILINE):
        assert len(indent) % 4 == 0, "a block within a list is indented by four"
