"""The program that a worker process runs first: it boots, waits for its start, and becomes the job's command.

    python worker_bootstrap.py PARENT_PID CONTROL_FD STATUS_FD warm script|module TARGET [ARGUMENT...]
    python worker_bootstrap.py PARENT_PID CONTROL_FD STATUS_FD cold PROGRAM [ARGUMENT...]

It is run by its path, in the interpreter of the training environment, and imports the standard library only.

Once it is ready it writes "w" to STATUS_FD. Then it waits for a line with a JSON object on CONTROL_FD: the environment
variables of its place among the workers. So the workers that train never wait for another one to boot.

- `warm` imports the modules that the script imports, and then waits. Some scripts are known to read those environment
  variables only when they initialise their communication. They run up to that call and wait there: a script that
  imports Horovod up to its first `hvd.init()`, a script with the client's torch.distributed helper up to
  `init_process_group()`. Any other script waits before its first line. When the script begins to run, "s" is written
  to STATUS_FD.
  When the script and its exit handlers have ended, "e" is written, or "f" if it has failed. If the interpreter has not
  ended a while after that, the kernel ends it by SIGALRM.
- `cold` waits, and is then replaced by the program.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import time
import zlib
from collections.abc import Callable
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
    "torchrun": ("malletrain.client.distributed", "malletrain.client.elastic", "malletrain.client.fsdp"),
}
_END_SECONDS = 20.0
"""How long an interpreter may take to end once the job's code and its exit handlers have; a second is usual."""
_GLOO_THREADS = "pt_gloo"
_GLOO_SECONDS = 1.0
_GLOO_PAUSE_SECONDS = 0.001
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_PLACE_VARIABLES = (b"RANK", b"WORLD_SIZE", b"MASTER_")
"""Parts of the names of variables. A script that contains one may read the variable before it initialises."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process that started it ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("worker_bootstrap: the process that started this worker has ended")


def keep_compiled() -> None:
    """Have torch.compile keep what it makes in the job's folder, for later workers, unless a job says where.

    torch's own place is /tmp/torchinductor_USER, which anybody may have made before, and it runs what it finds there.
    """
    folder = os.environ.get("MALLETRAIN_JOB_DIR")
    if folder:
        os.environ.setdefault(_COMPILED, str(Path(folder, "compiled", _kind_of_machine())))


def _kind_of_machine() -> str:
    """Name of a folder that only machines with the same instructions share: code is made for the CPU at hand."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        features = ""
    return f"{os.uname().machine}-{zlib.crc32(features.encode()):08x}"


def warm_up(script: Path | None) -> None:
    """Import the modules that the script will import. An error is ignored: the script itself will meet it again."""
    named = filter(None, os.environ.get("MALLETRAIN_PREIMPORT", "").split(","))
    general = _IMPORTS[os.environ.get("MALLETRAIN_BACKEND", "horovod")]
    for name in dict.fromkeys((*general, *named, *(imports_of(script) if script else ()))):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # a module may raise anything
            print(f"worker_bootstrap: {name} could not be imported yet: {error!r}", file=sys.stderr)


def imports_of(script: Path) -> list[str]:
    """Modules that a script imports at its top level, in order, except those in its own folder.

    A module of the job itself may have side effects when it is imported, such as initialising Horovod.
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
    """File of a script or module; None if a module is not found."""
    if kind == "script":
        return Path(target)
    try:
        spec = importlib.util.find_spec(target)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


class StartSignal:
    """The worker's end of the pipes: it waits for its start, and reports its status."""

    def __init__(self, control: int, status: int) -> None:
        self._control = control
        self._status = status

    def report_started(self) -> None:
        """Report that the job's own code runs from here on."""
        os.write(self._status, b"s")

    def wait(self) -> None:
        """Report that the worker is ready and wait for its start. End if the other end of the pipe is closed."""
        os.write(self._status, b"w")
        with os.fdopen(self._control, "r", encoding="utf-8") as stream:
            line = stream.readline()
        if not line:
            os._exit(0)
        os.environ.update(json.loads(line))


class CodeEnd:
    """What happens between the end of the job's own code and the end of the process.

    torch 2.13 can deadlock there: the interpreter takes a DistributedDataParallel apart, waits for Gloo's threads, and
    one of them waits for the interpreter to free what its last work held (pytorch issue 56297). So these threads get
    the chance to do that before. Whatever else hangs so late is ended: the job's code and its exit handlers have run.
    """

    def __init__(self, status: int) -> None:
        """Limit the end of this process, but not that of processes which are forked from it.

        Args:
            status: Pipe to which the end is reported.
        """
        self._status = status
        self._pipe = os.fstat(status)
        self._pid = os.getpid()
        self._failed = False
        self._kept: object = None
        atexit.register(self._limit)  # the first that is registered is called last

    def run(self, run: Callable[[], object]) -> None:
        """Run the job's own code; raises what it raises. Its objects are kept until its exit handlers have run."""
        try:
            self._kept = run()
        except SystemExit as error:
            self._failed = error.code not in (None, 0)
            raise
        except BaseException:
            self._failed = True
            raise

    def _limit(self) -> None:
        if os.getpid() != self._pid:
            return
        _await_gloo()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._status), self._pipe):  # the job's code may have closed it
                os.write(self._status, b"f" if self._failed else b"e")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, _END_SECONDS)


def _await_gloo() -> None:
    """Have Gloo's threads finish what they are at. They need the interpreter for that, and get it during the pauses."""
    deadline = time.monotonic() + _GLOO_SECONDS
    threads = [path for path in Path("/proc/self/task").iterdir() if _read(path / "comm").startswith(_GLOO_THREADS)]
    while threads and time.monotonic() < deadline:
        time.sleep(_GLOO_PAUSE_SECONDS)
        if not any(") R " in _read(path / "stat") for path in threads):
            return


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the thread has ended


def initialiser_of(script: Path | None) -> tuple[str, str] | None:
    """Module and name of the function before which a script can wait; None if it must wait before its first line."""
    names = imports_of(script) if script else []
    if os.environ.get("MALLETRAIN_BACKEND") == "torchrun":
        if script is None or not any(name in _HELPERS["torchrun"] for name in names):
            return None
        text = script.read_bytes()
        return None if any(variable in text for variable in _PLACE_VARIABLES) else (_DISTRIBUTED, "init_process_group")
    if any(name.partition(".")[0] == "horovod" or name in _HELPERS["horovod"] for name in names):
        return _HOROVOD, "init"
    return None


def wait_in(start: StartSignal, module: Any, name: str) -> None:
    """Have the first call of a module's function wait for the start."""
    original = getattr(module, name)

    @functools.wraps(original)
    def waiting(*arguments: Any, **options: Any) -> Any:
        setattr(module, name, original)
        start.wait()
        return original(*arguments, **options)

    setattr(module, name, waiting)


def main() -> None:
    """Boot, wait, and become the job's command."""
    parent, control, status = (int(word) for word in sys.argv[1:4])
    mode, *rest = sys.argv[4:]
    die_with_parent(parent)
    keep_compiled()
    start = StartSignal(control, status)
    if mode == "cold":
        start.wait()
        os.execvp(rest[0], rest)
    kind, target, *arguments = rest
    # With -P or -I there is no folder of the script at the head of the path.
    has_own_folder = not sys.flags.safe_path
    if has_own_folder:
        # In place of this file's folder, whose modules must not be found by their bare names.
        sys.path[0] = str(Path.cwd() if kind == "module" else Path(target).resolve().parent)
    script = script_of(kind, target)
    warm_up(script)
    initialiser = initialiser_of(script)
    if initialiser is not None and initialiser[0] in sys.modules:
        wait_in(start, sys.modules[initialiser[0]], initialiser[1])
    else:
        start.wait()
    end = CodeEnd(status)
    start.report_started()
    sys.argv = [target, *arguments]
    if kind == "module":
        end.run(lambda: runpy.run_module(target, run_name="__main__", alter_sys=True))
    else:
        end.run(lambda: runpy.run_path(target, run_name="__main__"))


if __name__ == "__main__":
    main()
