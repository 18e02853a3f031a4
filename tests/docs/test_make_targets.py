"""README lists what can be made."""

from __future__ import annotations

import re

from tests.docs.shell import ROOT

SAID_ELSEWHERE = {"help", "setup"}
"""Targets that others need, or that say what there is."""


def test_readme_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    there = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)) - SAID_ELSEWHERE
    rows = re.findall(r"^\| (`make .*?) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`make ([a-z-]+)`", row)} == there
