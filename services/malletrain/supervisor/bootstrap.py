"""What a worker's process runs first. Executed by path, in the trainer's interpreter: standard library only.

    python bootstrap.py PARENT_PID CONTROL_FD STATUS_FD warm script|module TARGET [ARGUMENT...]
    python bootstrap.py PARENT_PID CONTROL_FD STATUS_FD cold PROGRAM [ARGUMENT...]

Before a worker joins a world it says "w" on STATUS_FD and waits on CONTROL_FD for a JSON object of environment
variables, so that nobody who trains ever waits for a boot. `warm` imports what the trainer will import. A script that
is known to look at that environment only when it initialises its communication runs up to there and waits: one that
imports Horovod up to its first `hvd.init()`, one with the client's torch.distributed helper up to
`init_process_group()`. Any other waits before its first line. "s" says that the script runs. `cold` waits and becomes
the program.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_HOROVOD = "horovod.torch"
_DISTRIBUTED = "torch.distributed"
_IMPORTS = {
    "horovod": ("torch", "torch._dynamo", _HOROVOD),
    "torchrun": ("torch", "torch._dynamo", _DISTRIBUTED, "torch.nn.parallel"),
}
_HELPERS = {
    "horovod": ("malletrain.client.horovod", "malletrain.client.elastic"),
    "torchrun": ("malletrain.client.distributed", "malletrain.client.elastic"),
}
_PLACES = (b"RANK", b"WORLD_SIZE", b"MASTER_")
"""Variables (parts of their names) that a script which reads them needs from its first line on."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the supervisor ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("bootstrap: the supervisor has gone")


def warm_up(script: Path | None) -> None:
    """Import what the trainer will import; what goes wrong here will go wrong again, and be seen, in the trainer."""
    named = filter(None, os.environ.get("MALLETRAIN_PREIMPORT", "").split(","))
    general = _IMPORTS[os.environ.get("MALLETRAIN_BACKEND", "horovod")]
    for name in dict.fromkeys((*general, *named, *(imports_of(script) if script else ()))):
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


class Gate:
    """Where a worker waits until it has a place in a world."""

    def __init__(self, control: int, status: int) -> None:
        self._control = control
        self._status = status

    def say_started(self) -> None:
        """Say that the job's own code runs from here on."""
        os.write(self._status, b"s")

    def wait(self) -> None:
        """Block until the supervisor says go; without a word from it, end."""
        os.write(self._status, b"w")
        with os.fdopen(self._control, "r", encoding="utf-8") as stream:
            line = stream.readline()
        if not line:
            os._exit(0)
        os.environ.update(json.loads(line))


def initialiser_of(script: Path | None) -> tuple[str, str] | None:
    """Module and name of the function at which a script can wait; None where it must wait before its first line."""
    names = imports_of(script) if script else []
    if os.environ.get("MALLETRAIN_BACKEND") == "torchrun":
        if script is None or not any(name in _HELPERS["torchrun"] for name in names):
            return None
        text = script.read_bytes()
        return None if any(place in text for place in _PLACES) else (_DISTRIBUTED, "init_process_group")
    if any(name.partition(".")[0] == "horovod" or name in _HELPERS["horovod"] for name in names):
        return _HOROVOD, "init"
    return None


def wait_in(gate: Gate, module: Any, name: str) -> None:
    """Have the first call of a module's function wait at the gate."""
    original = getattr(module, name)

    @functools.wraps(original)
    def waiting(*arguments: Any, **options: Any) -> Any:
        setattr(module, name, original)
        gate.wait()
        return original(*arguments, **options)

    setattr(module, name, waiting)


def main() -> None:
    """Warm up, wait, become the trainer."""
    parent, control, status = (int(word) for word in sys.argv[1:4])
    mode, *rest = sys.argv[4:]
    die_with_parent(parent)
    gate = Gate(control, status)
    if mode == "cold":
        gate.wait()
        os.execvp(rest[0], rest)
    kind, target, *arguments = rest
    if kind == "module":
        sys.path[0] = str(Path.cwd())
    script = script_of(kind, target)
    warm_up(script)
    initialiser = initialiser_of(script)
    if initialiser is not None and initialiser[0] in sys.modules:
        wait_in(gate, sys.modules[initialiser[0]], initialiser[1])
    else:
        gate.wait()
    gate.say_started()
    sys.argv = [target, *arguments]
    if kind == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(target).resolve().parent)
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
