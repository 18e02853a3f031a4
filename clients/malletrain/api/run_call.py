"""What a job of `malletrain.Executor` runs: `python -m malletrain.api.run_call FOLDER` calls the folder's function."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from malletrain.api.call_files import CallFileError, CallResult, read_call, write_result

_RANKS = ("RANK", "HOROVOD_RANK")


def is_first_rank() -> bool:
    """Whether the result of this process is that of the job: of several it is the one of rank 0."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


def run_call(folder: Path) -> int:
    """Call the function of a folder, and write what came of it; returns the exit status of the job."""
    try:
        call = read_call(folder)
    except (CallFileError, ImportError) as error:
        return _report_failure(folder, error)
    timer: Any = None
    if call.timeout_seconds:
        timer = threading.Timer(call.timeout_seconds, _end, (folder, call.timeout_seconds))
        timer.daemon = True
        timer.start()
    try:
        value = call.function(*call.arguments, **call.keywords)
        if is_first_rank():
            write_result(folder, CallResult(value))
    except Exception as error:  # noqa: BLE001 - whatever it is, the submitter is told
        return _report_failure(folder, error)
    finally:
        if timer is not None:
            timer.cancel()
    return 0


def _report_failure(folder: Path, error: Exception) -> int:
    trace = "".join(traceback.format_exception(error))
    sys.stderr.write(trace)
    if is_first_rank():
        write_result(folder, CallResult(error=error, traceback=trace))
    return 1


def _end(folder: Path, seconds: float) -> None:
    """End this process, whatever its threads do."""
    try:
        _report_failure(folder, TimeoutError(f"it has not returned after {seconds:g} s"))
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    sys.exit(run_call(Path(sys.argv[1])))
