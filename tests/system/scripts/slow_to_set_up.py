"""Needs some seconds before its first step, in every process; notes when its steps end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from malletrain.client import install_signal_handler, report, should_stop

place = Path(os.environ["MALLETRAIN_JOB_DIR"], "position")
scale = int(os.environ.get("WORLD_SIZE") or os.environ["MALLETRAIN_WORLD_SIZE"])
install_signal_handler()
time.sleep(float(sys.argv[1]))
position = int(place.read_text()) if place.exists() else 0
leader = os.environ.get("RANK", "0") == "0"
while not should_stop():
    time.sleep(0.05)
    position += 10 * scale
    report(10 * scale, position=position)
    if leader:
        print("step", scale, time.time(), flush=True)
if leader:
    place.write_text(str(position))
