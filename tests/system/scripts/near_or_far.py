"""`near_or_far.py FOLDER`: a step takes as long as FOLDER/seconds says, in place of a network."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from malletrain.client import report

folder = Path(sys.argv[1])
while not (folder / "go").exists():
    time.sleep(float((folder / "seconds").read_text()))
    report(10)
