"""`malletrain debug replay` in a process of its own, with a planted defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def debug_replay(file: Path, *options: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    """Replay a file; `fault` is code that runs before."""
    code = fault + "from malletrain.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, "debug", "replay", str(file), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
