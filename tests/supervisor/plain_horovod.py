"""Horovod as most scripts have it: `hvd.init()`, a loop, a checkpoint of their own. Notes as `trainer.py` does."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
position = folder / "position"
asked: list[bool] = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
hvd.init()
notes = (folder / f"notes-{os.getpid()}.jsonl").open("a", buffering=1)
step = hvd.broadcast_object(int(position.read_text()) if position.exists() else 0)


def note(event: str) -> None:
    """Add a line."""
    line = {"event": event, "time": time.time(), "rank": hvd.rank(), "size": hvd.size(), "step": step}
    notes.write(json.dumps(line) + "\n")


note("start")
while step < int(os.environ.get("TEST_STEPS", "100000")):
    leaving = hvd.allreduce(torch.tensor([float(bool(asked))]), op=hvd.Sum)[0] > 0
    step += 1
    note("batch")
    if leaving:
        if hvd.rank() == 0:
            position.write_text(str(step))
        sys.exit(0)
    time.sleep(0.02)
