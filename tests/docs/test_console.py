"""Every console block of README and quick starts is run, or says why it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.shell import ROOT, page_shell

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/quickstart").glob("*.md"))]


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.horovod] if page.name == "README.md" else []


@pytest.mark.manual
@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [pytest.param(page, marks=_marks(page), id=page.stem) for page in PAGES])
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    blocks = read_blocks(page.read_text(encoding="utf-8"))
    needed = ["torch", "horovod"] if page.name == "README.md" else ["torch"]
    for module in needed:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: make setup")
    with page_shell(tmp_path) as shell:
        for block in blocks:
            shell.follow(block)
