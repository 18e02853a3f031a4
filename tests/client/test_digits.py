"""The example trains as a plain script, without any launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

SCRIPT = Path(__file__).parents[2] / "examples/digits/train.py"


def test_the_example_learns_without_malletrain(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLETRAIN_", "HOROVOD_"))
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--samples", "15000", "--width", "8", "--batch-per-worker", "64"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    accuracy = re.search(r"test accuracy ([\d.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9
    assert list(tmp_path.iterdir()) == []
