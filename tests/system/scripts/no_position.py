"""Tells no position and saves nothing: after a restart it begins anew. Notes how many steps each process has made."""

from __future__ import annotations

import os
import time
from pathlib import Path

from malletrain.client import report

with Path(os.environ["MALLETRAIN_JOB_DIR"], f"steps-{time.time_ns()}").open("ab", buffering=0) as notes:
    for _ in range(100_000):
        time.sleep(0.01)
        report(10)
        notes.write(b".")
