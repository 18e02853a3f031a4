"""HiGHS in a child process, which is killed when the time limit has passed.

HiGHS may hang, or overrun its own limit in presolve. Requests and answers are pickled over the standard streams of the
child. It sends every better solution as it finds it, so that the best one is known when it is killed.

Linux signals the death of a parent when the thread ends that started the child, so the child ends with that thread. The
next solve starts another child.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

from malletrain.allocator.solvers.milp import Floats, MilpModel, SolverError, maximise
from malletrain.common.child_process import ChildProcess, spawn

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 30.0
_OWN_SHARE = 0.9
"""HiGHS's own limit as a fraction of ours. It usually keeps to it, and then the child need not be killed."""
_HEADER = struct.Struct("<Q")


@dataclass(frozen=True)
class SolverAnswer:
    """HiGHS's answer.

    Attributes:
        solution: The best solution, shape (variables,); None if there is none.
        proven: Whether it is proven optimal.
        problem: What went wrong; empty if nothing did.
    """

    solution: Floats | None
    proven: bool
    problem: str = ""


@dataclass(frozen=True)
class _Child:
    """The child process.

    Attributes:
        stdin: Its standard input, which does not block.
        stdout: Its standard output. Both are unbuffered: poll would not see data that was read ahead.
    """

    process: ChildProcess
    stdin: IO[bytes]
    stdout: IO[bytes]


class SolverProcess:
    """A child process with HiGHS. It is started at the first solve, and again after a kill. One solve at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if there is none."""
        return self._child.process.pid if self._child else None

    def solve(self, model: MilpModel, seconds: float) -> SolverAnswer:
        """Solve a model within `seconds` of wall-clock time."""
        with self._lock:
            return self._solve(model, seconds)

    def _solve(self, model: MilpModel, seconds: float) -> SolverAnswer:
        try:
            child = self._ready_child()
        except (OSError, EOFError) as error:
            self._kill()
            return SolverAnswer(None, False, f"the solver's process did not start ({error!r})")
        deadline = time.monotonic() + seconds
        try:
            _send(child.stdin, (model, seconds * _OWN_SHARE), deadline)
        except TimeoutError:
            self._kill()
            return SolverAnswer(None, False, "the time limit passed")
        except OSError:
            self._kill()
            return SolverAnswer(None, False, "the solver's process died")
        return self._receive(child, deadline)

    def _receive(self, child: _Child, deadline: float) -> SolverAnswer:
        best: Floats | None = None
        while True:
            try:
                kind, content = _receive(child.stdout, deadline)
            except TimeoutError:
                self._kill()
                return SolverAnswer(best, False, "the time limit passed")
            except EOFError:
                self._kill()
                return SolverAnswer(best, False, "the solver's process died")
            if kind == "incumbent":
                best = content
            elif kind == "failed":
                return SolverAnswer(best, False, content)
            else:
                proven, solution = content
                return SolverAnswer(solution, proven, "" if proven else "the time limit passed")

    def _ready_child(self) -> _Child:
        """The child, started if necessary; the time limit of a solve does not include the start."""
        if self._child is not None and self._child.process.poll() is None:
            return self._child
        self._kill()
        self._child = _start_child()
        _receive(self._child.stdout, time.monotonic() + _START_SECONDS)
        return self._child

    def _kill(self) -> None:
        if self._child is None:
            return
        self._child.process.kill()
        self._child.process.wait()
        self._child.stdin.close()
        self._child.stdout.close()
        self._child = None

    def close(self) -> None:
        """Kill the child. A solve that is running in another thread ends too."""
        child = self._child
        if child is not None:
            child.process.kill()
        with self._lock:
            self._kill()


def _start_child() -> _Child:
    command = (sys.executable, "-P", "-m", "malletrain.allocator.solvers.solver_process", str(os.getpid()))
    their_input, our_output = os.pipe()
    our_input, their_output = os.pipe()
    stdin, stdout = os.fdopen(our_output, "wb", 0), os.fdopen(our_input, "rb", 0)
    try:
        process = spawn(command, os.environ, stdin=their_input, stdout=their_output, stderr=2)
    except OSError:
        stdin.close()
        stdout.close()
        raise
    finally:
        os.close(their_input)
        os.close(their_output)
    # A stopped child does not read; a write must not block beyond the deadline.
    os.set_blocking(our_output, False)
    return _Child(process, stdin, stdout)


def _send(stream: IO[bytes], message: object, deadline: float | None = None) -> None:
    """Write a message to an unbuffered stream; TimeoutError once `deadline` (monotonic seconds) has passed."""
    content = pickle.dumps(message)
    rest = memoryview(_HEADER.pack(len(content)) + content)
    while rest:
        _wait(stream, select.POLLOUT, deadline)
        rest = rest[stream.write(rest) or 0 :]


def _receive(stream: IO[bytes], deadline: float | None = None) -> Any:
    """The next message; TimeoutError once `deadline` (monotonic seconds) has passed, EOFError at the end."""
    (length,) = _HEADER.unpack(_read(stream, _HEADER.size, deadline))
    return pickle.loads(_read(stream, length, deadline))


def _read(stream: IO[bytes], length: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        _wait(stream, select.POLLIN, deadline)
        part = stream.read(length - len(parts))
        if not part:
            raise EOFError("end of stream")
        parts += part
    return bytes(parts)


def _wait(stream: IO[bytes], event: int, deadline: float | None) -> None:
    poller = select.poll()
    poller.register(stream, event)
    if not poller.poll(None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())):
        raise TimeoutError


def _serve(parent: int) -> None:
    """Main loop of the child: solve models until the parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out, into = os.fdopen(os.dup(1), "wb", 0), os.fdopen(0, "rb", 0)
    # Output that libraries print must not mix with the messages.
    os.dup2(2, 1)
    _send(out, ("ready", None))
    while os.getppid() == parent:
        try:
            model, seconds = _receive(into)
        except EOFError:
            return
        try:
            _send(out, ("solved", maximise(model, seconds, lambda best: _send(out, ("incumbent", best)))))
        except SolverError as error:
            _send(out, ("failed", str(error)))


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
