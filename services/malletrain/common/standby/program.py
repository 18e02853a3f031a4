"""The program of a standby process: it imports what jobs need, and forks workers from that when it is asked to.

    python program.py PARENT_PID SOCKET_FD MODULE,!MODULE.. ROOM

SOCKET_FD is a socket of which its parent has the other end; nobody else can reach it. It is run by its path, in the
interpreter of the training environment. ROOM only makes room for the command lines of workers.

A packet from the parent with descriptors is the request for one process: they are the order, the log, and for a worker
its two pipes and, if there is one, its memory for a handover. One without is a JSON object with `learn`: a script whose
imports shall be imported, too. The answer to a request is a JSON object: `pid`, or `refused` with `names` and `final`;
to the other `ready`. Without being asked the process says `ready`, `importing` with the name of a module, and `refused`
if it can't serve.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[3])
sys.path[:] = [_ROOT, *sys.path[0 if sys.flags.safe_path else 1 :]]  # this file's folder must not be searched

from malletrain.common import worker_bootstrap  # noqa: E402
from malletrain.common.standby import child  # noqa: E402
from malletrain.common.standby.preload import Preload, RefusedError, check_process  # noqa: E402
from malletrain.common.standby.process_area import ROOM_VARIABLE, ProcessArea, find_area  # noqa: E402

sys.path.remove(_ROOT)

_IDLE_MS = 1000
_PACKAGES_SECONDS = 60.0
_MAX_PACKET_BYTES = 4096
_MAX_DESCRIPTORS = 5
_MAX_MODULES = 64


class Standby:
    """A standby process from within: what it has imported, and the connection to its parent."""

    def __init__(self, parent: int, connection: socket.socket, modules: list[str], area: ProcessArea) -> None:
        """Nothing happens before `serve`.

        Args:
            modules: Modules to import; those that it must not import begin with an exclamation mark.
            area: Where others read this process's environment.
        """
        self.parent = parent
        self.connection = connection
        self.area = area
        self._preload = Preload()
        self._modules = [name for name in modules if not name.startswith("!")]
        for name in modules:
            if name.startswith("!"):
                self._preload.bar(name[1:])

    def prepare(self) -> None:
        """Import the modules, and have what they made shared with all workers."""
        for name in self._modules[:_MAX_MODULES]:
            self._report_state(importing=name)
            self._preload.bring_in(name)
        self._modules.clear()
        check_process()
        gc.collect()
        gc.freeze()
        self._report_state(ready=True)

    def move_to(self, parent: int, connection: socket.socket) -> None:
        """Go on as the standby process of another parent."""
        self.parent, self.connection = parent, connection
        self._preload.adopt_environment()
        self._report_state(ready=True)

    def serve(self) -> child.Order:
        """Answer requests until the parent ends. Returns in forked processes only, which have taken on their order.

        Raises:
            RefusedError: it can't serve any more.
        """
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        looked = time.monotonic()
        while True:
            has_request = bool(poll.poll(_IDLE_MS))
            if has_request and (order := self._answer()) is not None:
                return order
            if not has_request and time.monotonic() - looked > _PACKAGES_SECONDS:
                looked = time.monotonic()
                self._preload.check_packages()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass

    def _learn(self, script: Path) -> None:
        """Import what a script imports, once for all of its workers, and for those of later jobs."""
        wanted = dict.fromkeys(worker_bootstrap.indifferent_imports(script))
        self._modules = [name for name in wanted if not self._preload.has_tried(name)]
        if self._modules:
            gc.unfreeze()
            self.prepare()
        else:
            self._report_state(ready=True)

    def _answer(self) -> child.Order | None:
        packet, descriptors, flags, _ = socket.recv_fds(
            self.connection, _MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not packet or flags & socket.MSG_CTRUNC:
            os._exit(0)  # the parent has ended
        if not descriptors:
            self._learn(Path(json.loads(packet)["learn"]))
            return None
        order_file, log, *pipes = descriptors
        order = child.read_order(order_file)
        try:
            self._preload.check(order.environment)
        except RefusedError as error:
            self._report_state(refused=str(error), names=list(error.names), final=error.final)
            if error.final:
                os._exit(0)
            pid = 0
        else:
            pid = self._fork(order, log, pipes)
            if pid == 0:
                return _with_pipes(order, self.parent, pipes)
            self._report_state(pid=pid)
        for descriptor in (log, *pipes):
            os.close(descriptor)
        return None

    def _fork(self, order: child.Order, log: int, pipes: list[int]) -> int:
        """Fork a process that takes on an order; 0 in that process. Returns here once it has.

        There is another process between this one and a worker, which ends at once. The kernel then gives the worker to
        the parent of this process, which has asked for orphans.
        """
        go_read, go_write = os.pipe()
        report_read, report_write = os.pipe()
        first = os.fork()
        if first == 0:
            second = os.fork() if order.worker else 0
            if second != 0:
                os._exit(0)
            if os.read(go_read, 1) != b"g":
                os._exit(1)
            self.connection.close()
            os.write(report_write, str(os.getpid()).encode())
            child.take_on(_with_pipes(order, self.parent, pipes), self.area, log)
            for descriptor in (go_read, go_write, report_read, report_write):
                os.close(descriptor)
            return 0
        os.close(report_write)
        if order.worker:
            os.waitpid(first, 0)  # from here on the worker has its new parent
        os.write(go_write, b"g")
        for descriptor in (go_read, go_write):
            os.close(descriptor)
        with os.fdopen(report_read, "rb") as report:
            return int(report.read() or b"0")  # until the process has closed its end

    def refuse(self, error: RefusedError) -> None:
        """Say why this process can't serve."""
        self._report_state(refused=str(error), names=[], final=True)

    def _report_state(self, **content: Any) -> None:
        with contextlib.suppress(OSError):  # the parent has ended; the next look finds out
            self.connection.send(json.dumps(content).encode())


def _with_pipes(order: child.Order, parent: int, pipes: list[int]) -> child.Order:
    """An order with the numbers that its pipes have in this process."""
    if not order.worker:
        return order
    for descriptor in pipes:
        os.set_inheritable(descriptor, True)  # as in a process that was started with them
    numbers = [str(number) for number in (parent, *pipes)]
    split = len(order.words) - len(order.arguments)
    words = (*order.words[:split], *numbers, *order.words[split:])
    return replace(order, words=words, arguments=(*numbers, *order.arguments))


def main() -> None:
    """Import, serve, and in a forked process run what was asked for."""
    parent, descriptor = int(sys.argv[1]), int(sys.argv[2])
    modules = [name for name in sys.argv[3].split(",") if name]
    worker_bootstrap.die_with_parent(parent)
    os.environ.pop(ROOM_VARIABLE, None)
    for name, value in list(os.environ.items()):
        os.environ[name] = value  # copied: the kernel's copy is overwritten in workers
    area = find_area()
    area.show_arguments([child.STANDBY_TITLE])
    standby = Standby(parent, socket.socket(fileno=descriptor), modules, area)
    order = None
    try:
        standby.prepare()
        order = standby.serve()
        while not order.worker and (new_standby := child.split_off_standby(order, area)) is not None:
            worker_bootstrap.die_with_parent(new_standby[1])
            standby.move_to(new_standby[1], new_standby[0])
            order = None
            order = standby.serve()
    except RefusedError as error:
        standby.refuse(error)
        os._exit(0)
    child.run(order, worker_bootstrap)


if __name__ == "__main__":
    main()
