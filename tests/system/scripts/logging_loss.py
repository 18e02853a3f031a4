"""`logging_loss.py FOLDER`: trains a number towards 0 and logs its loss, until FOLDER/go is there.

It goes on after a restart. Every rank logs, and only rank 0 is to be seen: the others log 1000.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from malletrain.client import done, log_metrics, report

folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
counter = folder / "count"
step = int(counter.read_text()) if counter.exists() else 0
while not (folder / "go").exists():
    step += 1
    time.sleep(0.02)
    report(10, position=10 * step)
    if rank == 0:
        counter.with_suffix(".new").write_text(str(step))
        counter.with_suffix(".new").replace(counter)
    log_metrics({"loss": 1 / step if rank == 0 else 1000}, step)
    log_metrics({"rate": 0.1, "broken": float("nan")})
done()
