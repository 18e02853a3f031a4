"""What a worker's process runs first. Executed by path, in the trainer's interpreter: standard library only.

    python bootstrap.py PARENT_PID CONTROL_FD STATUS_FD warm script|module TARGET [ARGUMENT...]
    python bootstrap.py PARENT_PID CONTROL_FD STATUS_FD cold PROGRAM [ARGUMENT...]

`warm` imports what every trainer imports, says so on STATUS_FD, and waits on CONTROL_FD for a JSON object of
environment variables; only then does the trainer's script run. Survivors of a growth thus never wait for a boot:
Horovod reads its environment when it is initialised. `cold` waits the same way and then becomes the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_IMPORTS = ("torch", "torch._dynamo", "horovod.torch")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the supervisor ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("bootstrap: the supervisor has gone")


def warm_up() -> None:
    """Import what the trainer will need; what is missing is the trainer's business."""
    for name in (*_IMPORTS, *filter(None, os.environ.get("MALLETRAIN_PREIMPORT", "").split(","))):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def receive_environment(control: int) -> dict[str, str]:
    """Block until the supervisor says go; without a word from it, end."""
    with os.fdopen(control, "r", encoding="utf-8") as stream:
        line = stream.readline()
    if not line:
        sys.exit(0)
    found: dict[str, str] = json.loads(line)
    return found


def main() -> None:
    """Warm up, wait, become the trainer."""
    parent, control, status = (int(word) for word in sys.argv[1:4])
    mode, *rest = sys.argv[4:]
    die_with_parent(parent)
    if mode == "warm":
        warm_up()
    with os.fdopen(status, "w") as stream:
        stream.write("warm\n")
    os.environ.update(receive_environment(control))
    if mode == "cold":
        os.execvp(rest[0], rest)
    kind, target, *arguments = rest
    sys.argv = [target, *arguments]
    if kind == "module":
        sys.path[0] = str(Path.cwd())
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(target).resolve().parent)
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
