"""Services as forks of one process that has imported what they need: they begin at once, and share its memory.

`malletrain up` starts this module as a program, which imports the services and then forks one for each request. The
kernel gives that process to `up`, as if `up` had started it: the process in between ends at once, and `up` has asked
for orphans meanwhile. The program has one thread and no connection but that to `up`, with which it ends.

    python -P -m malletrain.cli.operate.service_forks PARENT_PID SOCKET_FD ROOM

A request is a packet: the service's command line as JSON, the descriptor of its log, and that of a pipe. The process
answers with its id, and goes on when `up` writes to the pipe; so none runs that `up` has given up. ROOM only makes room
for the command lines of services, by which others know them.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from malletrain.common.child_process import ChildProcess, spawn
from malletrain.common.orphans import adopt_orphans
from malletrain.common.standby.child import renew_randomness
from malletrain.common.standby.preload import RefusedError, check_process
from malletrain.common.standby.process_area import ProcessArea, find_area

_PROGRAM = "malletrain.cli.operate.service_forks"
TITLE = "malletrain-service-forks"
"""What is shown as the program's command line."""
_START_SECONDS = 60.0
"""How long a process may take; on a crowded machine the imports alone take half of that."""
_KILL_SECONDS = 5.0
_ADOPTION_SECONDS = 10.0
_PAUSE_SECONDS = 0.001
_MAX_PACKET_BYTES = 8 << 10
_ROOM_BYTES = 8 << 10
_NOT_SHARED = "no shared memory for a service"
_THREADS = "OPENBLAS_NUM_THREADS"


class ServiceForks:
    """The connection of `malletrain up` to the program. For one thread."""

    def __init__(self) -> None:
        self._program: ChildProcess | None = None
        self._connection: socket.socket | None = None
        self._has_forked = False

    def prepare(self) -> None:
        """Start the program if it does not run: it imports while `up` does something else.

        Raises:
            OSError: it can't be started now.
        """
        if self._runs():
            return
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _open(os.devnull, os.O_RDWR) as null:
            ours.settimeout(_START_SECONDS)
            self._connection = ours
            words = [sys.executable, "-P", "-m", _PROGRAM, str(os.getpid()), str(theirs.fileno()), "." * _ROOM_BYTES]
            self._program = spawn(words, os.environ, stdin=null, stdout=null, stderr=2, pass_fds=[theirs.fileno()])

    def _runs(self) -> bool:
        return self._program is not None and self._program.poll() is None

    def start(self, command: Sequence[str], log: int) -> ChildProcess:
        """Start a service; as a process that shares nothing where the program does not run, or can't fork.

        A program that was killed is started again, but not waited for: others may have to be started, too. One that has
        never forked a service can't, say as a library has begun a thread, and is not tried again.

        Args:
            command: The interpreter and its arguments, as a new process would have them. The last ones are `-m`, a
                module and the arguments of `malletrain`.
            log: Descriptor of its output and errors.

        Raises:
            OSError: it can't be started now.
        """
        if self._runs():
            try:
                process = self._fork(command, log)
            except OSError as error:
                self.close()
                if not isinstance(error, ConnectionError):  # else it has ended, and has said why where it knows
                    print(f"{_NOT_SHARED}, which starts without: {error or type(error).__name__}", file=sys.stderr)
            else:
                self._has_forked = True
                return process
        elif self._has_forked:
            with suppress(OSError):
                self.prepare()
        with _open(os.devnull, os.O_RDONLY) as null:
            return spawn(command, os.environ, stdin=null, stdout=log, stderr=log)

    def _fork(self, command: Sequence[str], log: int) -> ChildProcess:
        assert self._connection is not None
        go_read, go_write = os.pipe()
        adopt_orphans()
        try:
            socket.send_fds(self._connection, [json.dumps(list(command)).encode()], [log, go_read])
            answer = self._connection.recv(_MAX_PACKET_BYTES)
            if not answer:
                raise ConnectionResetError("the process that forks services has ended")
            os.write(go_write, b"g")
            return ChildProcess(int(answer))
        finally:
            adopt_orphans(False)
            os.close(go_read)
            os.close(go_write)

    def close(self) -> None:
        """End the program; services go on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._program is not None:
            self._program.kill()
            with suppress(TimeoutError):  # the kernel may hold it for longer
                self._program.wait(_KILL_SECONDS)
            self._program = None


@contextmanager
def _open(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def main() -> None:
    """Import the services, and fork one for each request until `up` ends; in a forked process, run the service."""
    parent, connection = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which means `up`
    area = find_area()
    area.show_arguments([TITLE])
    gc.disable()  # imports make objects that stay: looking through them is a tenth of their time
    _import_services()
    try:
        check_process()
    except RefusedError as error:
        sys.exit(f"{_NOT_SHARED}: {error}")
    gc.collect()
    gc.freeze()  # else a collection writes to all objects, and so to a page's every copy
    gc.enable()
    while True:
        with suppress(ConnectionResetError):
            packet, descriptors, _, _ = socket.recv_fds(connection, _MAX_PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            if len(descriptors) == 2:
                try:
                    if _fork():
                        break
                except OSError as error:
                    sys.exit(f"{_NOT_SHARED}: {error}")
                for descriptor in descriptors:
                    os.close(descriptor)
                continue
        os._exit(0)  # `up` has ended
    _take_on(json.loads(packet), descriptors[0], descriptors[1], parent, connection, area)
    from malletrain.cli.main import run

    run()


def _import_services() -> None:
    """Import what services need. OpenBLAS gets no threads: a fork would lack them, and services have small arrays."""
    threads = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    from malletrain.cli.operate.serve import import_services

    import_services()
    del os.environ[_THREADS]
    if threads is not None:
        os.environ[_THREADS] = threads


def _fork() -> bool:
    """Fork a process that is no child of this one; whether this is that process.

    Raises:
        OSError: the machine has no room for it. The program then ends, which `up` sees at once.
    """
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise BlockingIOError("no room for the process of a service")
        return False
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os._exit(0)
    return True


def _take_on(words: list[str], log: int, go: int, parent: int, connection: socket.socket, area: ProcessArea) -> None:
    """Become the process of a service, when `up` says so."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    for descriptor in (null, log):
        os.close(descriptor)
    deadline = time.monotonic() + _ADOPTION_SECONDS
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            sys.exit("malletrain up has not become the parent of this process")
        time.sleep(_PAUSE_SECONDS)
    connection.send(str(os.getpid()).encode())
    connection.close()
    if os.read(go, 1) != b"g":
        os._exit(1)  # `up` has given up, or ended
    os.close(go)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    area.show_arguments(words)
    sys.orig_argv = words
    sys.argv = ["malletrain", *words[words.index("-m") + 2 :]]
    renew_randomness()


if __name__ == "__main__":
    main()
