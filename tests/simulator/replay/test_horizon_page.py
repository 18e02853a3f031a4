"""The script in docs/horizon.md runs, on a smaller trace."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

from malletrain.scavenger.generate import generate
from malletrain.scavenger.trace_files import write_trace

PAGE = Path(__file__).parents[3] / "docs/horizon.md"


def test_the_script_prints_the_rows_of_the_table(tmp_path: Path) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert "1024, 48.0" in script
    trace = tmp_path / "idle.csv"
    write_trace(generate(12, 1800.0, 0.4, random.Random(1)), trace)
    command = [sys.executable, "-c", script.replace("1024, 48.0", "12, 0.5"), str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    rows = done.stdout.splitlines()
    assert len(rows) == 2 * 11
    assert rows[0].startswith("hpo | constant 30 s | ")
    assert all(len(row.split(" | ")) == 5 for row in rows)
