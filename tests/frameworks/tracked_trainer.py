"""A program that logs each step to a tracker, for the backend `command`: as one would write it without MalleTrain.

python tracked_trainer.py TRACKER SAMPLES
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from malletrain.client import done, install_signal_handler, report, should_commit, should_stop

BATCH = 10
EVERY = 20
"""Steps between two checkpoints."""


def open_tracker(tracker: str, first: int) -> tuple[Callable[[float, int], None], Callable[[], None]]:
    """What logs a loss at a step, and what ends the logging.

    Args:
        tracker: wandb, mlflow or tensorboard.
        first: The first step that this process will log.
    """
    if tracker == "wandb":
        import wandb

        run = wandb.init(project="tests")
        return lambda loss, step: run.log({"loss": loss}, step=step), run.finish
    if tracker == "mlflow":
        import mlflow

        mlflow.start_run()
        return lambda loss, step: mlflow.log_metric("loss", loss, step=step), mlflow.end_run
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(os.environ["TENSORBOARD_LOGGING_DIR"], purge_step=first, flush_secs=1)
    return lambda loss, step: writer.add_scalar("loss", loss, step), writer.close


def main() -> None:
    """Train to a number of samples, and log and note each step."""
    tracker, wanted = sys.argv[1], int(sys.argv[2])
    folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
    checkpoint = folder / "checkpoint.json"
    install_signal_handler()
    samples = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    log, close = open_tracker(tracker, samples // BATCH)

    def save() -> None:
        fresh = checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps(samples))
        fresh.replace(checkpoint)

    with (folder / f"notes-{os.getpid()}.jsonl").open("a", buffering=1) as notes:
        while samples < wanted:
            hosts = [host.partition(":")[0] for host in os.environ["MALLETRAIN_HOSTS"].split(",")]
            place = {"event": "batch", "time": time.time(), "pid": os.getpid(), "rank": 0, "size": len(hosts)}
            batch = {"before": samples, "indices": list(range(BATCH)), "dataset": BATCH, "hosts": hosts}
            notes.write(json.dumps({**place, **batch}) + "\n")
            log(1.0 / (1 + samples), samples // BATCH)
            samples += BATCH
            report(BATCH, samples)
            if should_stop():
                break
            if should_commit() or samples // BATCH % EVERY == 0:
                save()
            time.sleep(0.1)
    save()
    close()
    if samples >= wanted:
        done({"loss": 1.0 / samples}, samples)


if __name__ == "__main__":
    main()
