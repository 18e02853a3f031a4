"""A program of one process that saves and can be restarted, for the backend `command`.

It needs no torch, so that it boots fast. What it notes is like what `noting` does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from malletrain.client import done, install_signal_handler, report, should_commit, should_stop
from malletrain.client.sampling import EpochOrder

SIZE, BATCH = 300, 10
EVERY = 20
"""Steps between two checkpoints."""


def main() -> None:
    """Train to a number of samples, and note each batch."""
    wanted = int(sys.argv[1])
    folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
    checkpoint = folder / "checkpoint.json"
    install_signal_handler()
    weight, samples = 0.0, 0
    if checkpoint.exists():
        weight, samples = json.loads(checkpoint.read_text())

    def save() -> None:
        fresh = checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps([weight, samples]))
        fresh.replace(checkpoint)

    order = EpochOrder(SIZE, seed=1)
    with (folder / f"notes-{os.getpid()}.jsonl").open("a", buffering=1) as notes:
        while samples < wanted:
            indices = order.span(samples, BATCH)
            weight += 0.1 * (sum(indices) / BATCH - weight)
            hosts = [host.partition(":")[0] for host in os.environ["MALLETRAIN_HOSTS"].split(",")]
            place = {"event": "batch", "time": time.time(), "pid": os.getpid(), "rank": 0, "size": len(hosts)}
            batch = {"before": samples, "reached": samples + BATCH, "indices": indices, "dataset": SIZE}
            notes.write(json.dumps({**place, **batch, "hosts": hosts}) + "\n")
            samples += BATCH
            report(BATCH, samples)
            if should_stop():
                save()
                return
            if should_commit() or samples // BATCH % EVERY == 0:
                save()
            time.sleep(0.1)
    save()
    done({"weight": weight}, samples)


if __name__ == "__main__":
    main()
