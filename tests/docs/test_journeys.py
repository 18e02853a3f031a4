"""The journeys of docs/architecture.md name the files that a reader crosses, which exist and are not too many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.shell import ROOT

PAGE = ROOT / "docs/architecture.md"
ROOTS = (ROOT / "services/malletrain", ROOT / "clients/malletrain")


@pytest.mark.parametrize(
    ("heading", "most"),
    [
        ("One event, end to end", 22),
        ("From a submission to a process", 35),
        ("From `report()` to a point of the curve", 16),
    ],
)
def test_a_journey_crosses_few_files(heading: str, most: int) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    listed = section.split("The files, in order: ")[1].split("\n\n")[0].partition(". ")[0]
    files = _files(re.findall(r"`([^`]+\.py)`", listed))
    assert len(set(files)) == len(files)
    assert 10 < len(files) <= most


def _files(names: list[str]) -> list[Path]:
    """The files by these names; one without a folder lies beside the one before."""
    files: list[Path] = []
    for name in names:
        candidates = [root / name for root in ROOTS] if "/" in name else [files[-1].parent / name]
        (found,) = [path for path in candidates if path.is_file()]
        files.append(found)
    return files
