"""HiGHS in a process that can be killed: the time limit is enforced from outside.

A solver may hang or overrun its own limit inside presolve. Requests and answers are pickled over the child's standard
streams; the child sends every better solution on the way, so that the best one so far outlives it.

The child ends with the thread that started it (that is how Linux signals a parent's death), at the latest with its
process. A later solve starts another.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

from malletrain.allocator.integer_model import Floats, IntegerModel, SolverError, maximise

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 30.0
_OWN_SHARE = 0.9
"""HiGHS's own limit as a share of ours: as a rule it keeps to it, and then the child need not be killed."""
_HEADER = struct.Struct("<Q")


@dataclass(frozen=True)
class Answer:
    """What came of a solve.

    Attributes:
        solution: The best solution, or None.
        proven: Whether it is optimal.
        problem: What went wrong; empty where nothing did.
    """

    solution: Floats | None
    proven: bool
    problem: str = ""


class SolverProcess:
    """A child process with HiGHS, started when first needed and again after a kill. One solve at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return self._child.pid if self._child else None

    def solve(self, model: IntegerModel, seconds: float) -> Answer:
        """Solve a model within `seconds` of wall-clock time, whatever the solver does."""
        with self._lock:
            return self._solve(model, seconds)

    def _solve(self, model: IntegerModel, seconds: float) -> Answer:
        try:
            child = self._ready_child()
        except (OSError, EOFError) as error:
            self._kill()
            return Answer(None, False, f"the solver's process did not start ({error!r})")
        assert child.stdin is not None
        deadline = time.monotonic() + seconds
        try:
            _send(child.stdin, (model, seconds * _OWN_SHARE), deadline)
        except TimeoutError:
            self._kill()
            return Answer(None, False, "the time limit passed")
        except OSError:
            self._kill()
            return Answer(None, False, "the solver's process died")
        return self._receive(child, deadline)

    def _receive(self, child: subprocess.Popen[bytes], deadline: float) -> Answer:
        assert child.stdout is not None
        best: Floats | None = None
        while True:
            try:
                kind, content = _receive(child.stdout, deadline)
            except TimeoutError:
                self._kill()
                return Answer(best, False, "the time limit passed")
            except EOFError:
                self._kill()
                return Answer(best, False, "the solver's process died")
            if kind == "incumbent":
                best = content
            elif kind == "failed":
                return Answer(best, False, content)
            else:
                proven, solution = content
                return Answer(solution, proven, "" if proven else "the time limit passed")

    def _ready_child(self) -> subprocess.Popen[bytes]:
        """The child; starting it does not count against the time limit of a solve."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._kill()
        command = [sys.executable, "-m", "malletrain.allocator.solver_process", str(os.getpid())]
        # Unbuffered: a message read ahead would hide from select.
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        # A stopped child does not read: a write must not wait for it beyond the deadline.
        os.set_blocking(self._child.stdin.fileno(), False)
        _receive(self._child.stdout, time.monotonic() + _START_SECONDS)
        return self._child

    def _kill(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # what was not sent need not arrive
        self._child = None

    def close(self) -> None:
        """End the child, and with it a solve that another thread may have under way."""
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._kill()


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
    """The child: solve what comes until the parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out, into = os.fdopen(os.dup(1), "wb", 0), os.fdopen(0, "rb", 0)
    # What a library prints must not get between the messages.
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
