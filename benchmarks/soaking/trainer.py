"""A training that costs next to nothing: `python trainer.py SAMPLES`; it counts, reports, and saves as real ones do.

Each step takes a fifth of a second. Rank 0 keeps the counter in the job's folder, once a second and when it is asked to
leave; a kill costs what was done since.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from malletrain.client import install_signal_handler, report, should_stop

STATE = "position"
_STEP_S, _SAVE_S = 0.2, 1.0
_SAMPLES_PER_WORKER = 32


def save(path: Path, position: int) -> bool:
    """Whether the counter could be kept: the disk may be full."""
    draft = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        draft.write_text(str(position))
        draft.replace(path)
        return True
    return False


def main(total: int) -> None:
    install_signal_handler()
    path = Path(os.environ["MALLETRAIN_JOB_DIR"]) / STATE
    workers = int(os.environ.get("WORLD_SIZE") or os.environ.get("MALLETRAIN_WORLD_SIZE") or "1")
    if int(os.environ.get("RANK") or "0"):
        while not should_stop():
            time.sleep(_STEP_S)
        return
    position = int(path.read_text()) if path.exists() else 0
    saved = time.monotonic()
    while position < total and not should_stop():
        time.sleep(_STEP_S)
        step = min(_SAMPLES_PER_WORKER * workers, total - position)
        position += step
        report(step, position)
        if time.monotonic() - saved > _SAVE_S:
            saved = time.monotonic()
            save(path, position)
    while not save(path, position):
        time.sleep(_STEP_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
