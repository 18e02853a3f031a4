"""The program that a worker process runs first: it boots, waits for its place, and becomes the job's command.

    python worker_bootstrap.py PARENT_PID CONTROL_FD STATUS_FD [MEMORY_FD] warm script|module TARGET [ARGUMENT...]
    python worker_bootstrap.py PARENT_PID CONTROL_FD STATUS_FD [MEMORY_FD] cold PROGRAM [ARGUMENT...]

It is run by its path, in the interpreter of the training environment, and imports the standard library only.

Once it has booted it writes "w" to STATUS_FD. Then it waits for a line on CONTROL_FD, so that the workers that train
never wait for another one to boot. A line is a JSON object, the environment variables of the worker's place among the
workers: the job's command begins. Or it is such an object after "prepare ": this will be the place, as far as is known.
The worker then gets ready, writes "p", and waits for the line with which it begins.

- `warm` imports, before it knows its place, only packages that take no notice of it (`INDIFFERENT`). Any other may ask
  for the place when it is imported, as may the script. Once a place has been promised, it imports what the script
  imports before it does anything else. A script that imports Horovod runs up to its first `hvd.init()` instead, and
  waits there. When the script begins to run, "s" is written to STATUS_FD.
  When the script and its exit handlers have ended, "e" is written, or "f" if it has failed. If the interpreter has not
  ended a while after that, the kernel ends it by SIGALRM.
- `cold` waits, writes "s", and is then replaced by the program, which gets neither of the two pipes.

Through MEMORY_FD a worker may hand its state to the one that takes its place; see `malletrain.common.handover_memory`.

To a script everything looks as if the interpreter had been started with it: `__main__`, `sys.argv`, `sys.path`, what
`multiprocessing` tells the processes that it starts, tracebacks.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import ctypes
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import pkgutil
import runpy
import signal
import site
import sys
import sysconfig
import time
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_BASICS = "horovod.common.basics"
_DISTRIBUTED = "torch.distributed"
_IMPORTS = {
    "horovod": ("torch", "torch._dynamo", "horovod.torch"),
    "torchrun": ("torch", "torch._dynamo", _DISTRIBUTED, "torch.nn.parallel"),
}
INDIFFERENT = frozenset({"torch", "horovod", "numpy", "scipy", "sklearn"})
"""Packages that do not look at a worker's place among the others when they are imported; a test watches them."""
_OTHER_FRAMEWORKS = frozenset({"tensorflow", "keras", "mxnet", "jax", "flax"})
_OTHERS_IN_HOROVOD = ("horovod.tensorflow", "horovod.keras", "horovod.mxnet")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_HELPERS = ("malletrain.client.horovod", "malletrain.client.elastic")
PREPARE = "prepare "
_END_SECONDS = 20.0
"""How long an interpreter may take to end once the job's code and its exit handlers have; a second is usual."""
_GLOO_THREADS = "pt_gloo"
_GLOO_SECONDS = 1.0
_GLOO_PAUSE_SECONDS = 0.001
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_TRACKERS = "MALLETRAIN_TRACKERS"
_HANDOVER = "MALLETRAIN_HANDOVER_MEMORY"
_NOT_RUN, _NOT_FOUND = 126, 127
"""Exit statuses of a program that can't be run, and of one that is not there, as a shell has them."""


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


def offer_memory(memory: list[int], *, inherited: bool) -> None:
    """Tell the job's own code of the memory for a handover, if there is one.

    Args:
        memory: Its descriptor, or none.
        inherited: Whether programs that this process becomes or starts get it: the training may be one of these.
    """
    os.environ.pop(_HANDOVER, None)
    for descriptor in memory:
        os.set_inheritable(descriptor, inherited)
        os.environ[_HANDOVER] = str(descriptor)


def continue_tracked_runs() -> None:
    """Have trackers go on with the runs of the job, if this is rank 0 and the job asks for that."""
    spec = importlib.util.spec_from_file_location("_tracker_runs", Path(__file__).with_name("tracker_runs.py"))
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ.update(module.tracker_variables(os.environ))


def _kind_of_machine() -> str:
    """Name of a folder that only machines with the same instructions share: code is made for the CPU at hand."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        features = ""
    return f"{os.uname().machine}-{zlib.crc32(features.encode()):08x}"


def warm_up(script: Path | None) -> None:
    """Import what takes no notice of the worker's place. An error is ignored: the script itself will meet it again."""
    named = filter(None, os.environ.get("MALLETRAIN_PREIMPORT", "").split(","))
    general = _IMPORTS.get(_backend(), ()) if may_use_torch(script) else ()
    for name in dict.fromkeys((*general, *named, *(indifferent_imports(script) if script else ()))):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # a module may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name != name:
                continue  # what it needs is not installed, such as torch where the script trains with something else
            print(f"worker_bootstrap: {name} could not be imported yet: {error!r}", file=sys.stderr)


def _backend() -> str:
    return os.environ.get("MALLETRAIN_BACKEND", "horovod")


def may_use_torch(script: Path | None) -> bool:
    """Whether torch is installed, and a script does not say that it is one of another framework."""
    if _spec_of("torch") is None:
        return False
    names = imports_of(script) if script else []
    packages = {name.partition(".")[0] for name in names}
    others = packages & _OTHER_FRAMEWORKS or any(name.startswith(_OTHERS_IN_HOROVOD) for name in names)
    return not others or "torch" in packages


def indifferent_imports(script: Path) -> list[str]:
    """Modules that a script imports at its top level, and that take no notice of a worker's place."""
    return [name for name in imports_of(script) if name.partition(".")[0] in INDIFFERENT]


def imports_of(script: Path) -> list[str]:
    """Modules that a script imports at its top level, in order, except those in its own folder."""
    return [name for statement in _statements(script) for name in _imported_names(statement, script)]


def _statements(script: Path) -> list[ast.stmt]:
    try:
        return ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []


def _imported_names(statement: ast.stmt, script: Path) -> list[str]:
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
        names = [statement.module]
    else:
        return []
    own = script.resolve().parent
    return [name for name in names if not _lies_in(own, name.partition(".")[0])]


def _lies_in(folder: Path, package: str) -> bool:
    return (folder / f"{package}.py").exists() or (folder / package).is_dir()


def script_of(kind: str, target: str) -> Path | None:
    """File of a script or module; None if a module is not found. Imports nothing, not even the module's package."""
    if kind == "script":
        return Path(target)
    spec = _spec_of(target)
    if spec is None or spec.submodule_search_locations is not None:
        spec = _spec_of(f"{target}.__main__")
    return Path(spec.origin) if spec and spec.origin else None


def _spec_of(module: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module; unlike `importlib.util.find_spec`, without importing the package that it lies in."""
    spec: importlib.machinery.ModuleSpec | None = None
    folders: list[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            spec = next(filter(None, (finder.find_spec(name, folders) for finder in sys.meta_path)), None)
        except KeyError:  # a folder without __init__.py in a package that has not been imported
            spec, folders = None, [str(Path(folder, part)) for folder in folders or ()]
            continue
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
    return spec


def _is_installed(package: str) -> bool:
    """Whether a package is the interpreter's, not one in a folder of a user."""
    if package in sys.builtin_module_names or package in sys.stdlib_module_names:
        return True
    spec = _spec_of(package)
    if spec is None or spec.origin is None:
        return False
    return any(Path(spec.origin).is_relative_to(folder) for folder in package_folders())


def package_folders() -> list[str]:
    """Folders in which packages are installed: those of this interpreter, and those that a site's modules add.

    EasyBuild's and Spack's modules name theirs in PYTHONPATH, and an environment on top of another in a .pth file.
    """
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    added = [folder for folder in sys.path if Path(folder).name in _PACKAGE_FOLDERS]
    return list(dict.fromkeys([*own, *added]))


class StartSignal:
    """The worker's end of the pipes: it waits for its place and its start, and reports its status."""

    def __init__(self, control: int, status: int) -> None:
        self._control = os.fdopen(control, "r", encoding="utf-8")
        self._status = status

    def report_started(self) -> None:
        """Report that the job's own code runs from here on."""
        os.write(self._status, b"s")

    def wait_for_place(self) -> bool:
        """Report that the worker has booted, and wait for its place. End if the other end of the pipe is closed.

        Returns:
            Whether it shall only prepare, and then wait for its start.
        """
        os.write(self._status, b"w")
        return self._take_line()

    def wait(self) -> None:
        """Report that the worker has prepared, and wait for its start."""
        os.write(self._status, b"p")
        self._take_line()

    def _take_line(self) -> bool:
        line = self._control.readline()
        if not line:
            os._exit(0)
        prepares = line.startswith(PREPARE)
        if not prepares:
            self._control.close()  # the job's own code gets nothing of ours
        os.environ.update(json.loads(line.removeprefix(PREPARE)))
        if not prepares and os.environ.get(_TRACKERS):
            continue_tracked_runs()
        return prepares


class CodeEnd:
    """What happens between the end of the job's own code and the end of the process.

    torch 2.13 can deadlock there: the interpreter takes a DistributedDataParallel apart, waits for Gloo's threads, and
    one of them waits for the interpreter to free what its last work held (pytorch issue 56297). So these threads get
    the chance to do that before. Whatever else hangs so late is ended: the job's code and its exit handlers have run.
    """

    def __init__(self, status: int) -> None:
        """Limit the end of this process, but not that of processes which are forked from it."""
        self._status = status
        self._pipe = os.fstat(status)
        self._pid = os.getpid()
        self._failed = False
        atexit.register(self._limit)  # the first that is registered is called last

    def run(self, run: Callable[[], object]) -> None:
        """Run the job's own code; ends as the interpreter would, or raises what ends it otherwise."""
        try:
            run()
        except SystemExit as error:
            self._failed = error.code not in (None, 0)
            raise
        except Exception as error:  # noqa: BLE001  # the job's code may raise anything
            self._failed = True
            _show(error)
            sys.exit(1)
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


def waits_in_horovod(script: Path | None) -> bool:
    """Whether a script that knows its place can run up to the first `hvd.init()` before its start.

    A script of torch.distributed can't: what it does before would be done again by the workers of the next generation.
    """
    if _backend() != "horovod" or script is None:
        return False
    return any(name.partition(".")[0] == "horovod" or name in _HELPERS for name in imports_of(script))


class InitHold:
    """Has the first `hvd.init()`, of whichever framework, wait for the start of a worker that shall only prepare.

    Attributes:
        armed: Whether it waits.
    """

    def __init__(self, start: StartSignal) -> None:
        self._start = start
        self.armed = False

    def install(self) -> bool:
        """Stand in for the function that all frameworks' `init` are, before any of them takes it; False: no Horovod."""
        try:
            basics = importlib.import_module(_BASICS).HorovodBasics
        except Exception:  # noqa: BLE001  # the script itself will meet it again, if it uses Horovod at all
            return False
        original = basics.init

        @functools.wraps(original)
        def init(*arguments: Any, **options: Any) -> Any:
            if self.armed:
                self.armed = False
                self._start.wait()
            return original(*arguments, **options)

        basics.init = init
        return True


def import_head(script: Path | None) -> None:
    """Import what a script imports before it does anything else, in the same order; its own modules are left to it.

    What comes after another statement is left to the script, too: that may choose a folder or a variable for it.
    """
    for statement in _statements(script) if script else ():
        if _is_text(statement) or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            continue
        names = _imported_names(statement, script) if script else []
        wanted = len(statement.names) if isinstance(statement, ast.Import) else 1
        if len(names) != wanted or not all(_is_installed(name.partition(".")[0]) for name in names):
            return
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException:  # noqa: BLE001  # the script itself will meet it again, and say it
                return


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class MainProgram:
    """The job's command, and the module `__main__` in which it runs in place of this file's."""

    def __init__(self, kind: str, target: str, arguments: list[str]) -> None:
        """Look like an interpreter that was started with the command; run nothing yet.

        Args:
            kind: script or module.
        """
        self._is_module = kind == "module"
        self._target = target
        if not sys.flags.safe_path:  # with -P or -I there is no folder of the script at the head of the path
            # In place of this file's folder, whose modules must not be found by their bare names.
            sys.path[0] = str(Path.cwd() if self._is_module else Path(target).resolve().parent)
        sys.argv = ["-m" if self._is_module else target, *arguments]
        sys.orig_argv = [*_interpreter_words(), *(["-m", target] if self._is_module else [target]), *arguments]
        self._hidden = sys.modules["__main__"]  # its functions still run
        self._module = types.ModuleType("__main__")
        self._module.__dict__.update(__builtins__=builtins, __annotations__={})
        sys.modules["__main__"] = self._module
        # Started processes look for the script in the folder in which multiprocessing was imported.
        if (processes := sys.modules.get("multiprocessing.process")) is not None:
            vars(processes)["ORIGINAL_DIR"] = str(Path.cwd())

    def run(self) -> None:
        """Run the command; raises what it raises."""
        if self._is_module:
            _run_as_main(self._target)
        elif pkgutil.get_importer(self._target) is not None:  # a folder or an archive
            sys.path[0] = str(Path(self._target).absolute())
            _run_as_main("__main__", alter_argv=False)
        elif self._target.endswith(".pyc"):
            runpy.run_path(self._target, run_name="__main__")
        else:
            self._run_script()

    def _run_script(self) -> None:
        # The interpreter makes the path absolute, but leaves it as it is otherwise.
        path = os.path.join(os.getcwd(), self._target)  # noqa: PTH109, PTH118
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            reason = f"[Errno {error.errno}] {error.strerror}"
            print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)
            sys.exit(2)
        namespace = self._module.__dict__
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        namespace.update(__file__=path, __cached__=None, __loader__=loader)
        exec(compile(content, path, "exec", dont_inherit=True), namespace)  # the job's own script


def _interpreter_words() -> list[str]:
    """The interpreter and its options, as they stand before this file in the command line."""
    words = sys.orig_argv
    own = next((at for at, word in enumerate(words) if word == __file__), 1)
    return list(words[:own])


def _run_as_main(module: str, **options: bool) -> None:
    """Run a module as `python -m` does; it is what the interpreter itself calls."""
    vars(runpy)["_run_module_as_main"](module, **options)


def _show(error: BaseException) -> None:
    """Have an error of the job's code shown as the interpreter does, without the steps that are this file's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)


def _of_first_line(program: str, error: OSError) -> str:
    """What the first line of a file has to do with it that the system can't run it; empty: nothing."""
    try:
        with os.fdopen(os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            first = file.readline(200)
    except OSError:
        return ""
    named = first[2:].strip(b" \t\n")
    if first.startswith(b"#!") and isinstance(error, FileNotFoundError):
        ending = ", with a line end of Windows (dos2unix)" if named.endswith(b"\r") else ""
        return f": {named.decode(errors='replace')!a}, which its first line names{ending}"
    if not first.startswith((b"#!", b"\x7fELF")):
        return "; its first line names no interpreter, e.g. #!/bin/sh"
    return ""


def become(start: StartSignal, status: int, command: list[str]) -> NoReturn:
    """Be replaced by a program. It runs from here on, and only its end can be seen from outside."""
    os.set_inheritable(status, False)
    start.report_started()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        reason = f"{error.strerror}{_of_first_line(command[0], error)}"
        print(f"worker_bootstrap: can't run {command[0]}: {reason}", file=sys.stderr, flush=True)
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN)


def main() -> None:
    """Boot, wait, and become the job's command."""
    numbers = [int(word) for word in itertools.takewhile(str.isdigit, sys.argv[1:])]
    parent, control, status, *memory = numbers
    mode, *rest = sys.argv[1 + len(numbers) :]
    die_with_parent(parent)
    keep_compiled()
    offer_memory(memory, inherited=mode == "cold")
    start = StartSignal(control, status)
    if mode == "cold":
        if start.wait_for_place():
            start.wait()
        become(start, status, rest)
    kind, target, *arguments = rest
    program = MainProgram(kind, target, arguments)
    script = script_of(kind, target)
    hold = InitHold(start)
    holds = waits_in_horovod(script) and hold.install()
    warm_up(script)
    if start.wait_for_place():
        if holds:
            hold.armed = True
        else:
            import_head(script)
            start.wait()
    end = CodeEnd(status)
    start.report_started()
    end.run(program.run)


if __name__ == "__main__":
    main()
