"""A process that prepares samples, as the feed sees it, and what that costs."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from malletrain.client.feeding.codec import encode
from malletrain.client.feeding.errors import UnsuitableSampleError
from malletrain.client.feeding.schedule import Task
from malletrain.client.feeding.seeding import Preparation
from malletrain.client.warn_once import describe
from malletrain.common.worker_bootstrap import die_with_parent

_TASK = struct.Struct("=qq")
_HEAD = struct.Struct("=qqq")
TASKS_AHEAD = 2
"""Samples that a process has been asked for: one that it prepares, and the next."""


class TaskOutcome(IntEnum):
    """What has become of a task."""

    PREPARED = 0
    RAISED = 1
    UNSUITABLE = 2


class PreparedSample(NamedTuple):
    """The end of a task.

    Attributes:
        task: The task.
        outcome: What has become of it.
        content: The sample as bytes, or the reason as text.
        cpu_seconds: CPU time that it took.
    """

    task: Task
    outcome: TaskOutcome
    content: bytes
    cpu_seconds: float = 0.0

    @property
    def reason(self) -> str:
        """Why there is no sample."""
        return self.content.decode(errors="replace")


class PreparingProcess:
    """One such process, as the feed sees it.

    Attributes:
        pid: Its process id.
        connection: The feed's end of the connection to it.
        tasks: What it has been asked for, and has not answered.
        retiring: Whether it ends once it has answered, and is asked for nothing more.
    """

    def __init__(self, preparation: Preparation, inherited: Iterable[int]) -> None:
        """Fork it.

        Args:
            inherited: Descriptors of the feed that it must not keep open.

        Raises:
            OSError: it can't be forked.
        """
        self.connection, other = socket.socketpair()
        self.tasks: deque[Task] = deque()
        self.retiring = False
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run(lambda: _be_child(parent, other, preparation, [*inherited, self.connection.fileno()]))
        other.close()
        self.connection.setblocking(False)
        self._buffer = bytearray(_HEAD.size)
        self._outcome: TaskOutcome | None = None
        self._cpu_seconds = 0.0
        self._filled = 0

    @property
    def is_free(self) -> bool:
        """Whether it can be asked for another sample."""
        return len(self.tasks) < TASKS_AHEAD and not self.retiring

    def give(self, task: Task) -> None:
        """Ask for a sample.

        Raises:
            OSError: it has ended.
        """
        self.connection.send(_TASK.pack(*task))
        self.tasks.append(task)

    def receive(self) -> list[PreparedSample]:
        """What it has answered.

        Raises:
            EOFError: it has ended, and all that it had answered has been returned before.
        """
        done: list[PreparedSample] = []
        while True:
            if self._filled < len(self._buffer):
                try:
                    got = self.connection.recv_into(memoryview(self._buffer)[self._filled :])
                except BlockingIOError:
                    return done
                except ConnectionError:
                    got = 0
                if not got:
                    if done:
                        return done  # the next call finds the end again
                    raise EOFError
                self._filled += got
            if self._filled < len(self._buffer):
                continue
            content, self._filled = bytes(self._buffer), 0
            if self._outcome is None:
                kind, length, cpu_ns = _HEAD.unpack(content)
                self._outcome, self._buffer, self._cpu_seconds = TaskOutcome(kind), bytearray(length), cpu_ns / 1e9
            else:
                done.append(PreparedSample(self.tasks.popleft(), self._outcome, content, self._cpu_seconds))
                self._outcome, self._buffer = None, bytearray(_HEAD.size)

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self.connection.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _run(child: Callable[[], None]) -> None:
    """Run a forked process to its end: it never returns to the code of the feed."""
    try:
        child()
    except BaseException as error:  # noqa: BLE001 - a dataset may raise anything
        print(f"malletrain: a process that prepares samples ends: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _be_child(parent: int, connection: socket.socket, preparation: Preparation, inherited: Iterable[int]) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in inherited:
        os.close(descriptor)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # as in a DataLoader's processes: there are as many as shall compute
    while packet := connection.recv(_TASK.size, socket.MSG_WAITALL):
        began = time.process_time_ns()
        outcome, content = _answer(preparation, Task(*_TASK.unpack(packet)))
        connection.sendall(_HEAD.pack(outcome, len(content), time.process_time_ns() - began))
        connection.sendall(content)


def _answer(preparation: Preparation, task: Task) -> tuple[TaskOutcome, bytes]:
    try:
        return TaskOutcome.PREPARED, encode(preparation.prepare(*task))
    except UnsuitableSampleError as error:
        return TaskOutcome.UNSUITABLE, str(error).encode()
    except Exception as error:  # noqa: BLE001 - a dataset may raise anything
        return TaskOutcome.RAISED, describe(error).encode()


_REMEMBERED = 512.0
"""Samples on which a figure rests about: older ones count less and less."""
MIN_SAMPLES = 8
"""A figure is told once it rests on so many samples."""


@dataclass
class PreparingCosts:
    """CPU time of samples."""

    samples: int = 0
    _weight: float = 0.0
    _seconds: float = 0.0

    def add(self, cpu_seconds: float) -> None:
        """A sample has been prepared in so much CPU time, in seconds."""
        self.samples += 1
        kept = 1.0 - 1.0 / _REMEMBERED
        self._weight = self._weight * kept + 1.0
        self._seconds = self._seconds * kept + max(0.0, cpu_seconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of a sample; 0: not known yet."""
        return self._seconds / self._weight if self.samples >= MIN_SAMPLES else 0.0
