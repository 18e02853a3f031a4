"""What an example changes in its plain form, as its README prints it."""

from __future__ import annotations

import difflib
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def real_diff(name: str) -> list[str]:
    """Changed lines between plain.py and elastic.py of an example, without blank ones."""
    plain, elastic = ((EXAMPLES / name / script).read_text().splitlines() for script in ("plain.py", "elastic.py"))
    lines = difflib.unified_diff(plain, elastic, lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---") and line[1:].strip()]
