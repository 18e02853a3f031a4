"""One process: quick batches, then silence, then a checkpoint. What it does in the silence: MODE."""

from __future__ import annotations

import os
import time
from pathlib import Path

from malletrain.client import current_job, install_signal_handler, phase, report, should_stop

MODE = os.environ["MODE"]
SECONDS = float(os.environ["SECONDS_SILENT"])
install_signal_handler()
job = current_job()
file = Path(job.checkpoint_directory if job else ".") / "position"
position = int(file.read_text()) if file.exists() else 0


def be_silent() -> None:
    """Sleep, but leave soon when asked to."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not should_stop():
        time.sleep(1)


def save() -> None:
    """Write the position in one step."""
    new = file.with_suffix(".new")
    new.write_text(str(position))
    new.replace(file)


print(f"begins at {position}", flush=True)
if MODE == "start":
    be_silent()
while not should_stop():
    for _ in range(200):
        time.sleep(0.05)
        position += 1
        report(16, position=16 * position)
        if should_stop():
            break
    if should_stop():
        break
    if MODE == "phase":
        with phase("evaluate"):
            be_silent()
    elif MODE == "save":
        with phase("save"):
            be_silent()
    elif MODE == "silence":
        be_silent()
    elif MODE == "computes":
        until = time.monotonic() + SECONDS / 20
        while time.monotonic() < until:
            sum(range(1000))
    save()
save()
print(f"saved {position}", flush=True)
