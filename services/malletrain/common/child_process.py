"""Starts child processes by posix_spawn, which runs nothing of this process in them.

`subprocess` falls back to fork(2) where the kernel refuses vfork(2), as while a machine has no room for another task. A
fork copies one thread of a process with many: handlers of libraries that wait for the others, as those of gRPC and
OpenBLAS may, then never return, and neither does the thread that has started the child. posix_spawn says that there is
no room, and returns.

Python holds its interpreter lock until the child's program has begun. One on a file system that does not answer would
stop this whole process: start what may lie anywhere with `through_shell` or by `malletrain.common.start_process`, whose
children begin with a program of this machine, and go on to theirs by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_SHELL = "/bin/sh"
_FIRST_FREE = 3
_FIRST_LOOK_SECONDS = 0.001
_MAX_LOOK_SECONDS = 0.05
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and programs do not expect to be ignored."""


class ChildProcess:
    """A child of this process, whoever has forked it. It is used like `subprocess.Popen`, from any thread.

    Attributes:
        pid: Process id.
        returncode: Exit status, negative for a signal; None while it has not been seen to end.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    self.returncode = -signal.SIGKILL  # somebody else has collected it: never take that for a success
                else:
                    if pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end; returns the exit status.

        Args:
            seconds: How long to wait; None: until it ends.

        Raises:
            TimeoutError: it still runs.
        """
        if seconds is None:
            with contextlib.suppress(ChildProcessError):  # `poll` says what that means
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        deadline = time.monotonic() + (seconds or 0.0)
        pause = _FIRST_LOOK_SECONDS
        while (code := self.poll()) is None:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"process {self.pid} still runs")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _MAX_LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    pass_fds: Collection[int] = (),
    new_session: bool = False,
    new_group: bool = False,
) -> ChildProcess:
    """Start a process. It inherits only the descriptors that are named here.

    Args:
        command: Program and arguments. A program without a slash is looked for in the PATH of the environment.
        environment: The whole environment.
        stdin: Descriptor of its standard input.
        stdout: Descriptor of its standard output.
        stderr: Descriptor of its standard error.
        pass_fds: Descriptors that it inherits under their own numbers.
        new_session: Whether it leads a session of its own.
        new_group: Whether it leads a process group of its own, which a session of its own implies.

    Raises:
        OSError: it can't be started.
    """
    program = find_program(command[0], environment)
    wanted = [(stdin, 0), (stdout, 1), (stderr, 2), *((number, number) for number in pass_fds)]
    # Copies under other numbers: none is overwritten before its turn, and one onto itself would not be inherited.
    copies: list[int] = []
    try:
        for source, _ in wanted:
            copies.append(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
        inherited = {target for _, target in wanted}
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable() - inherited]
        actions += [(os.POSIX_SPAWN_DUP2, copy, target) for copy, (_, target) in zip(copies, wanted, strict=True)]
        group: dict[str, Any] = {"setpgroup": 0} if new_group else {}
        pid = os.posix_spawn(
            *(program, list(command), dict(environment)),
            file_actions=actions,
            setsid=new_session,
            setsigdef=_RESET,
            **group,
        )
    finally:
        for copy in copies:
            os.close(copy)
    return ChildProcess(pid)


def _inheritable() -> set[int]:
    """Descriptors that children would inherit: Python and gRPC open none such, but who has started this process may."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers here
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            if os.get_inheritable(int(name)):
                descriptors.add(int(name))
    return descriptors


def through_shell(command: Sequence[str], environment: Mapping[str, str], folder: str | None = None) -> tuple[str, ...]:
    """A command line that does the same and begins with this machine's shell. Variables with odd names get lost.

    Args:
        command: Program and arguments.
        environment: The environment in whose PATH the program is looked for.
        folder: Working directory; None: that of this process.

    Raises:
        OSError: there is no such program.
    """
    words = (find_program(command[0], environment), *command[1:])
    if folder is None:
        return (_SHELL, "-c", 'exec "$@"', _SHELL, *words)
    return (_SHELL, "-c", 'cd "$1" && shift && exec "$@"', _SHELL, folder, *words)


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """Path of a program, which is not started.

    Raises:
        OSError: there is none that may be executed.
    """
    if path := shutil.which(name, path=environment.get("PATH", os.defpath)):
        return str(Path(path).absolute())
    number = errno.EACCES if "/" in name and Path(name).exists() else errno.ENOENT
    raise OSError(number, os.strerror(number), name)
