"""What a worker's process runs first. Executed by path, in the trainer's interpreter: standard library only.

    python bootstrap.py PARENT_PID CONTROL_FD STATUS_FD warm script|module TARGET [ARGUMENT...]
    python bootstrap.py PARENT_PID CONTROL_FD STATUS_FD cold PROGRAM [ARGUMENT...]

`warm` imports what the trainer will import, says so on STATUS_FD, and waits on CONTROL_FD for a JSON object of
environment variables; only then does the trainer's script run. Survivors of a growth thus never wait for a boot:
Horovod reads its environment when it is initialised. `cold` waits the same way and then becomes the program.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import importlib.util
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


def warm_up(script: Path | None) -> None:
    """Import what the trainer will import; what goes wrong here will go wrong again, and be seen, in the trainer."""
    named = filter(None, os.environ.get("MALLETRAIN_PREIMPORT", "").split(","))
    for name in dict.fromkeys((*_IMPORTS, *named, *(imports_of(script) if script else ()))):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # a module may raise anything
            print(f"bootstrap: {name} could not be imported yet: {error!r}", file=sys.stderr)


def imports_of(script: Path) -> list[str]:
    """Modules that a script imports at its top level, in order, less those of its own folder.

    A module of the job's own may do more than define things when it is imported, such as initialise Horovod.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    names: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
            names.append(statement.module)
    own = script.resolve().parent
    return [name for name in names if not _lies_in(own, name.partition(".")[0])]


def _lies_in(folder: Path, package: str) -> bool:
    return (folder / f"{package}.py").exists() or (folder / package).is_dir()


def script_of(kind: str, target: str) -> Path | None:
    """File of a script or of a module."""
    if kind == "script":
        return Path(target)
    try:
        spec = importlib.util.find_spec(target)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


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
        if rest[0] == "module":
            sys.path[0] = str(Path.cwd())
        warm_up(script_of(rest[0], rest[1]))
    with os.fdopen(status, "w") as stream:
        stream.write("warm\n")
    os.environ.update(receive_environment(control))
    if mode == "cold":
        os.execvp(rest[0], rest)
    kind, target, *arguments = rest
    sys.argv = [target, *arguments]
    if kind == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(target).resolve().parent)
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
