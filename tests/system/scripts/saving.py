"""A loop that saves when it gets SIGTERM, and goes on where it was.

usage: saving.py STEPS SECONDS_PER_STEP
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from malletrain.client import report

position = Path(os.environ["MALLETRAIN_JOB_DIR"]) / "position"
step = int(position.read_text()) if position.exists() else 0


def leave(*_: object) -> None:
    """Save and end."""
    position.write_text(str(step))
    print(f"saved {step}", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
print(f"begins at {step}", flush=True)
while step < int(sys.argv[1]):
    time.sleep(float(sys.argv[2]))
    step += 1
    report(8, position=8 * step)
