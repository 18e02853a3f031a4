"""A worker that marks what it has, saves when it is asked to, and trains nothing.

TEST_SHARDED: ranks with a part of the state that others do not have. TEST_SAVING: ranks that show that they save.
TEST_SAVE_SECONDS: how long a save takes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from malletrain.client.saving_marker import SavingMarker
from malletrain.common.job_folder import SHARDED_FOLDER

rank, size = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
notes = (folder / f"notes-{os.getpid()}.jsonl").open("a", buffering=1)


def note(event: str) -> None:
    """Note what happens."""
    line = {"event": event, "time": time.time(), "pid": os.getpid(), "rank": int(rank), "size": size}
    notes.write(json.dumps(line) + "\n")


def is_listed(variable: str) -> bool:
    """Whether this rank is in a list."""
    return rank in os.environ.get(variable, "").split(",")


def save(*_: object) -> None:
    """Save, and end."""
    note("asked")
    saving = SavingMarker(folder)
    if is_listed("TEST_SAVING"):
        saving.create()
    time.sleep(float(os.environ.get("TEST_SAVE_SECONDS", "0")))
    note("saved")
    saving.remove()
    os._exit(0)


signal.signal(signal.SIGTERM, save)
if is_listed("TEST_SHARDED"):
    SavingMarker(folder, SHARDED_FOLDER).create()
note("start")
while True:
    signal.pause()
