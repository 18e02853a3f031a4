"""Every console block of the page on the days after is run on a live installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.shell import ROOT, page_shell


@pytest.mark.manual
@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with page_shell(tmp_path) as shell:
        for block in read_blocks((ROOT / "docs/operators/day2.md").read_text(encoding="utf-8")):
            shell.follow(block)
