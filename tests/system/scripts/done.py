"""`done.py FOLDER` waits for FOLDER/go, says that it is done, and ends. Each run adds a line to FOLDER/runs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from malletrain.client import done

folder = Path(sys.argv[1])
with (folder / "runs").open("a", encoding="utf-8") as runs:
    runs.write(f"{os.getpid()}\n")
while not (folder / "go").exists():
    time.sleep(0.02)
done()
