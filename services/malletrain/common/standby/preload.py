"""What a standby process imports, and whether it may fork workers afterwards. Standard library only."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import site
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from malletrain.common.worker_bootstrap import package_folders

OWN_PACKAGE = "malletrain"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_NATIVE = (
    *("PYTHON", "LD_", "GLIBC_TUNABLES", "MALLOC_", "LANG", "LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("GOTO_", "BLIS_", "DNNL_", "ONEDNN_", "NUMEXPR_", "TORCH", "PYTORCH", "ATEN_", "CUDA_MODULE_LOADING"),
)
"""How names of variables begin that the loader, the interpreter or libraries in C read by themselves."""
_NEVER = frozenset({OWN_PACKAGE, "mpi4py"})
"""Packages that are not imported ahead: ours reads the job's variables, and mpi4py initialises MPI."""
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/infiniband/")


class RefusedError(Exception):
    """A standby process may not fork this worker, or none at all.

    Attributes:
        names: Environment variables that differ from those with which it has imported.
        final: Whether it will not fork any other worker either.
    """

    def __init__(self, reason: str, names: Iterable[str] = (), *, final: bool = False) -> None:
        """
        Args:
            names: Variables that differ.
            final: Whether all workers are refused from here on.
        """
        super().__init__(reason)
        self.names = tuple(names)
        self.final = final


class Preload:
    """The modules that this process has imported ahead, and the environment in which it did."""

    def __init__(self) -> None:
        """Import nothing yet. The environment is that of this moment."""
        self._environment = dict(os.environ)
        self._read: set[str] = {"HOME", "PYTHONUSERBASE"} if site.ENABLE_USER_SITE else set()
        self._tried: set[str] = set()
        self._packages = package_key()

    def has_tried(self, name: str) -> bool:
        """Whether a module has been imported, or is not to be."""
        return name in self._tried or name in sys.modules

    def bar(self, name: str) -> None:
        """Never import this module ahead."""
        self._tried.add(name)

    def bring_in(self, name: str) -> None:
        """Import a module of the interpreter's own packages; others, and those that fail, are left to the worker.

        Raises:
            RefusedError: the import has left something behind that must not be shared; final.
        """
        if name in self._tried:
            return
        self._tried.add(name)
        with self._watched():
            if not _is_installed(name):
                return
            with contextlib.suppress(Exception):  # the script itself will meet it again
                importlib.import_module(name)
        check_process(name)

    def adopt_environment(self) -> None:
        """Take the present environment for that of the imports. It has passed `check`."""
        self._environment = dict(os.environ)

    def check(self, environment: Mapping[str, str]) -> None:
        """Refuse a worker that would not find here what a new interpreter finds.

        Raises:
            RefusedError: it would not.
        """
        self.check_packages()
        if differing := differing_variables(environment, self._environment, self._read):
            raise RefusedError(f"variables differ: {', '.join(differing[:10])}", differing)
        check_process()

    def check_packages(self) -> None:
        """Refuse all workers if packages have been installed, removed or replaced since the start.

        Raises:
            RefusedError: they have; final.
        """
        if package_key() != self._packages:
            raise RefusedError("the interpreter's packages have changed", final=True)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note which variables are asked for, and have OpenBLAS start no threads, which it does when it is imported."""
        kind = type(os.environ)
        ask = kind.__getitem__

        def note(own: os._Environ[str], name: str) -> str:
            self._read.add(name)
            return ask(own, name)

        before = os.environ.get(_BLAS_THREADS)
        os.environ[_BLAS_THREADS] = "1"
        kind.__getitem__ = note  # type: ignore[method-assign]
        try:
            yield
        finally:
            kind.__getitem__ = ask  # type: ignore[method-assign]
            if before is None:
                os.environ.pop(_BLAS_THREADS, None)
            else:
                os.environ[_BLAS_THREADS] = before


def differing_variables(one: Mapping[str, str], other: Mapping[str, str], read: Iterable[str] = ()) -> list[str]:
    """Names of variables that differ and matter: those that were read, and those that native code reads by itself."""
    names = {*read, *(name for name in {*one, *other} if name.startswith(_NATIVE))}
    return sorted(name for name in names if one.get(name) != other.get(name))


def package_key() -> tuple[tuple[str, str, int], ...]:
    """What changes when packages of this interpreter are installed, removed or replaced."""
    packages: list[tuple[str, str, int]] = []
    for folder in _site_folders():
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if entry.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth")):
                    packages.append((folder, entry.name, entry.stat().st_mtime_ns))
    return tuple(sorted(packages))


def _site_folders() -> list[str]:
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*package_folders(), *own]


def _is_installed(name: str) -> bool:
    """Whether a module belongs to a package in the interpreter's site-packages, not in a folder of a user."""
    package = name.partition(".")[0]
    if package in _NEVER:
        return False
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None or spec.origin is None:
        return False
    origin = Path(spec.origin).resolve()
    return any(origin.is_relative_to(Path(folder).resolve()) for folder in _site_folders())


def check_process(module: str = "") -> None:
    """Refuse to fork a process that has more than memory: threads, children, devices or connections.

    Args:
        module: What was imported last.

    Raises:
        RefusedError: it has; final.
    """
    cause = f"{module} has started" if module else "there are"
    if (count := len(os.listdir("/proc/self/task"))) != 1:  # noqa: PTH208 - before each fork
        raise RefusedError(f"{cause} {count - 1} threads", final=True)
    for number, target in _descriptors():
        if target.startswith(_DEVICES):
            raise RefusedError(f"{module or 'a module'} has opened {target}", final=True)
        if number > 2 and target.startswith("socket:") and not _is_ours(number):
            raise RefusedError(f"{module or 'a module'} has opened a connection", final=True)
    if _uses_gpu():
        raise RefusedError(f"{module or 'a module'} has initialised CUDA", final=True)


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - before each fork
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - as above


def _is_ours(number: int) -> bool:
    """Whether a socket is the connection to this process's parent, the only one of its kind here."""
    import socket

    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return False
    with socket.socket(fileno=os.dup(number)) as opened:
        return opened.family == socket.AF_UNIX and opened.type == socket.SOCK_SEQPACKET


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())
