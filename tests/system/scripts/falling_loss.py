"""`falling_loss.py FOLDER RATE`: logs a loss that falls by a rate each step, 40 steps, and goes on until FOLDER/go."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from malletrain.client import done, log_metrics, report

folder, rate = Path(sys.argv[1]), float(sys.argv[2])
step = 0
while step < 40 or not (folder / "go").exists():
    step += 1
    time.sleep(0.05)
    report(10, position=10 * step)
    if step <= 40:
        log_metrics({"loss": (1 - rate) ** step, "accuracy": 1 - (1 - rate) ** step}, step)
        print(f"step {step} loss {(1 - rate) ** step:.3f}", flush=True)
done()
