"""What a forked process does to become the command that was asked for. Standard library only."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.common.cgroups import join
from malletrain.common.standby.preload import OWN_PACKAGE
from malletrain.common.standby.process_area import ProcessArea

STANDBY_TITLE = "malletrain-standby"
"""What is shown in place of a standby process's command line."""
STANDBY_VARIABLE = "MALLETRAIN_STANDBY"
"""FD:PID of the standby process that a forked supervisor finds beside itself."""
_NOT_STARTED = 127
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_BLAS_FUNCTIONS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)


@dataclass(frozen=True)
class Order:
    """What is asked of a standby process.

    Attributes:
        words: The interpreter and its arguments, as a new process would have them.
        target: The command's script or module, in whose folder nothing is imported ahead.
        kind: script or module.
        arguments: The bootstrap's arguments for a worker; else the arguments of the module.
        folder: Working directory.
        environment: The whole environment.
        worker: Whether it is a worker, which is the child of this process's parent and ends with it. Otherwise it is a
            supervisor, which goes on whatever happens to this process, and gets a standby process of its own.
        cgroup: The file by which a supervisor joins a cgroup, with all that it starts; empty: it joins none.
    """

    words: tuple[str, ...]
    target: str
    kind: str
    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    worker: bool
    cgroup: str = ""


def read_order(descriptor: int) -> Order:
    """Read an order from a file in memory."""
    with os.fdopen(descriptor, "rb") as file:
        raw: dict[str, Any] = json.load(file)
    return Order(**{**raw, "words": tuple(raw["words"]), "arguments": tuple(raw["arguments"])})


def take_on(order: Order, area: ProcessArea, log: int) -> None:
    """Take on session, output, environment, folder and random numbers. The process ends if it can't."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(log)
    if order.cgroup and (reason := join(order.cgroup)):
        print(f"runs outside of its cgroup: {reason}", file=sys.stderr, flush=True)
    try:
        os.chdir(order.folder)
    except OSError as error:
        print(f"can't enter the working directory: {error}", file=sys.stderr, flush=True)
        os._exit(_NOT_STARTED)
    os.environ.clear()
    os.environ.update(order.environment)
    area.show_environment(order.environment)
    area.show_arguments(order.words)
    time.tzset()
    sys.orig_argv = list(order.words)
    renew_randomness()
    _set_blas_threads()
    for name in [name for name in sys.modules if name.partition(".")[0] == OWN_PACKAGE]:
        del sys.modules[name]  # a worker imports those of its own environment
    gc.enable()


def renew_randomness() -> None:
    """Have no two forked processes share random numbers. Python's own generator renews itself after a fork."""
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.current_process().authkey = os.urandom(32)
    if (files := sys.modules.get("tempfile")) is not None:
        vars(files)["tempdir"] = None  # found again by the job's variables


def _set_blas_threads() -> None:
    """Have OpenBLAS use as many threads as it would have begun with; it was imported with one."""
    configured = [
        int(text) for name in _BLAS_VARIABLES if (text := os.environ.get(name, "")).isdigit() and int(text) > 0
    ]
    cpus = len(os.sched_getaffinity(0))
    threads = min(configured[0], cpus) if configured else cpus
    if threads == 1:
        return
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if "openblas" in line and line.count("/")}:
        library = ctypes.CDLL(path)
        for name in _BLAS_FUNCTIONS:
            if (function := getattr(library, name, None)) is not None:
                function(threads)


def split_off_standby(order: Order, area: ProcessArea) -> tuple[socket.socket, int] | None:
    """Fork a standby process for this supervisor, before it has any thread.

    Returns:
        In the new standby process its connection and its parent; None in the supervisor.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.setsid()
        # It must not be taken for the supervisor, whose incarnation it would show.
        visible = {name: value for name, value in order.environment.items() if name != "MALLETRAIN_INCARNATION"}
        area.show_environment(visible)
        area.show_arguments([STANDBY_TITLE])
        return theirs, parent
    theirs.close()
    os.environ[STANDBY_VARIABLE] = f"{ours.detach()}:{pid}"
    return None


def run(order: Order, bootstrap: Any) -> None:
    """Run the command; returns when it has ended, or raises what it raises.

    Args:
        order: What is asked for.
        bootstrap: The module `worker_bootstrap`.
    """
    if not sys.flags.safe_path:
        sys.path.insert(0, order.folder)
    if order.worker:
        sys.argv = [bootstrap.__file__, *order.arguments]
        bootstrap.main()
        return
    sys.argv = [order.target, *order.arguments]
    _run_module(order.target)


def _run_module(target: str) -> None:
    runpy.run_module(target, run_name="__main__", alter_sys=True)
