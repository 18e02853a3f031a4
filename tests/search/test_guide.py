"""The guide to searches, with its script, on live services."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="needs malletrain[search]")

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

GUIDE = Path(__file__).parents[2] / "docs/search.md"
SCRIPT = """\
import sys
lr, depth = (float(word.split("=")[1]) for word in sys.argv[1:])
accuracy = depth / 10 - lr
"""


def test_the_guide_runs(tmp_path: Path) -> None:
    search, ending = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(SCRIPT + ending)
    head, *lines = search.splitlines()
    code = [
        head,
        "with malletrain.local(nodes=2, settings={'job_manager.standby_memory_mib': '0'}):",
        *(f"    {line}" for line in lines),
        "    print(len(study.trials))",
    ]
    (tmp_path / "search.py").write_text("\n".join(code))
    environment = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "search.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    best, count = done.stdout.splitlines()
    assert re.fullmatch(r"\{'lr': [0-9.e-]+, 'depth': [2-8]\} 0\.\d+", best)
    assert count == "6"
    assert list((tmp_path / ".local/share/malletrain").glob("studies.*"))
