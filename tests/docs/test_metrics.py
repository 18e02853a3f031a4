"""The page of the metrics names each of them, with its kind and meaning, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.shell import ROOT
from tests.support.declared_metrics import declared_metrics

PAGE = ROOT / "docs/operators/metrics.md"
HEADINGS = {
    "Every service": "",
    "Scavenger": "scavenger",
    "Allocator": "allocator",
    "JobManager": "job_manager",
    "Monitor": "monitor",
    "Profiler": "profiler",
}
ROW = re.compile(r"\| `(malletrain_\w+)` \| (\w+) \|([^|]*)\| ([^|]*) \|")


def documented() -> dict[str, dict[str, tuple[str, str]]]:
    """By service and name: kind and meaning."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        heading, _, rest = section.partition("\n")
        rest = rest.partition("\n## ")[0]
        found[HEADINGS[heading]] = {name: (kind, meaning) for name, kind, _, meaning in ROW.findall(rest)}
    return found


async def test_the_page_has_the_metrics_that_there_are(tmp_path: Path) -> None:
    there = await declared_metrics(tmp_path)
    expected = {
        service: {name: (family.type, family.documentation) for name, family in families.items()}
        for service, families in there.items()
    }
    assert documented() == expected
