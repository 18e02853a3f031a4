"""The parent's side of a standby process: starts it, asks it for processes, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from malletrain.common.accounts import Account
from malletrain.common.cgroups import Cgroup
from malletrain.common.child_process import ChildProcess
from malletrain.common.processes import belongs_to, read_status
from malletrain.common.standby.child import Order
from malletrain.common.standby.preload import RefusedError
from malletrain.common.standby.process_area import ROOM_VARIABLE
from malletrain.common.start_process import start_process
from malletrain.common.untrusted_json import (
    JsonBounds,
    UntrustedJsonError,
    flag_of,
    integer_of,
    parse_object,
    text_of,
    texts_of,
)

PROGRAM = Path(__file__).with_name("program.py")
_ENVIRONMENT_ROOM = 32 << 10
_MAX_ROOM = 120 << 10
"""The kernel takes strings of up to 128 KiB."""
_ARGUMENTS_ROOM = 4 << 10
_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_OWNERS_ANSWER_SECONDS = 1.0
"""Whoever waits for the process of a user must not be kept for long."""
_MAX_PACKET_BYTES = 64 << 10
_MAX_PACKETS = 64
"""In one look: a process that never stops talking must not keep this one listening."""
_PACKET_BOUNDS = JsonBounds(_MAX_PACKET_BYTES, max_depth=2, max_entries=1000)
_MAX_REQUEST_BYTES = 4096
_MAX_NAMES = 64
_MAX_NAME_LENGTH = 200
_MAX_REASON_LENGTH = 1000
_MAX_PID = 1 << 22


class Phase(Enum):
    """What a standby process does."""

    IMPORTING = "importing"
    READY = "ready"
    ENDED = "ended"


class ForkedProcess(ChildProcess):
    """A process that a standby process has forked: a child of this process."""


@dataclass(frozen=True)
class _Reply:
    """The answer to a request: a process, or why there is none."""

    pid: int = 0
    refused: str = ""
    names: tuple[str, ...] = ()
    final: bool = False


class StandbyProcess:
    """One standby process. Use from one thread, which must live as long: the kernel kills it when that thread ends.

    Attributes:
        phase: What it does, as of the last call of `poll`.
        importing: The module that it imports, or at which it has ended; empty if there is none.
        refusal: Why it does not serve; empty if it has not said so.
    """

    def __init__(self, connection: socket.socket, pid: int, process: ChildProcess | None) -> None:
        """Use one that has been started; see `start_standby`.

        Args:
            process: The process, if this one has started it.
        """
        self.pid = pid
        self.phase = Phase.IMPORTING
        self.importing = ""
        self.refusal = ""
        self._connection = connection
        self._process = process
        self._asked: tuple[Order, Account | None, float] | None = None
        self._reply: _Reply | None = None
        connection.setblocking(False)

    def poll(self) -> Phase:
        """Take in what it says, and whether it has ended."""
        for _ in range(_MAX_PACKETS):
            if self.phase is Phase.ENDED or (packet := self._receive()) is None:
                break
            try:
                self._handle_packet(packet)
            except UntrustedJsonError as error:
                self._end_for(str(error))
        if self._process is not None and self._process.poll() is not None:
            self.phase = Phase.ENDED
        return self.phase

    def fork(self, order: Order, log: int, pipes: Sequence[int], account: Account | None) -> int:
        """Have it fork a process, and wait for that; see `ask`.

        Returns:
            Process id.

        Raises:
            RefusedError: as `ask` and `answer`.
        """
        self.ask(order, log, pipes, account)
        while (pid := self.answer()) is None:
            select.select([self._connection], [], [], _LOOK_SECONDS)
        return pid

    def ask(self, order: Order, log: int, pipes: Sequence[int], account: Account | None) -> None:
        """Ask it to fork a process; `answer` follows, before anything else is asked.

        Args:
            order: What the process shall run.
            log: Descriptor of the file for its output.
            pipes: A worker's descriptors, for `worker_bootstrap`.
            account: Whose process it must be; None: ours.

        Raises:
            RefusedError: it does not take requests; final.
        """
        seconds = _ANSWER_SECONDS if account is None else _OWNERS_ANSWER_SECONDS
        self._asked, self._reply = (order, account, time.monotonic() + seconds), None
        descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, json.dumps(asdict(order)).encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            socket.send_fds(self._connection, [b"fork"], [descriptor, log, *pipes])
        except OSError as error:
            raise RefusedError(f"it does not take requests ({error})", final=True) from error
        finally:
            os.close(descriptor)

    def answer(self) -> int | None:
        """Process id of the process that was asked for; None as long as it may still come. Does not wait.

        Raises:
            RefusedError: it does not fork it, does not answer within two seconds, or says what is not true.
        """
        phase, reply = self.poll(), self._reply
        if self._asked is None:
            raise RefusedError("it was not asked")
        order, account, deadline = self._asked
        if reply is None and phase is not Phase.ENDED and time.monotonic() < deadline:
            return None
        self._asked = self._reply = None
        if reply is None:
            raise RefusedError("it has not answered", final=True)
        if not reply.pid:
            raise RefusedError(reply.refused, reply.names, final=reply.final)
        if order.worker and not _is_our_child(reply.pid, account):
            raise RefusedError(f"process {reply.pid} is no child of this one", final=True)
        return reply.pid

    def learn(self, script: str) -> None:
        """Have it import what a script imports, too; it is ready once more when it has."""
        packet = json.dumps({"learn": script}).encode()
        with contextlib.suppress(OSError):  # it has ended; `poll` finds out
            if len(packet) <= _MAX_REQUEST_BYTES:
                self._connection.send(packet)
                self.phase = Phase.IMPORTING

    def _handle_packet(self, packet: Mapping[str, Any]) -> None:
        """Take in one packet. The process is a user's: it may say anything.

        Raises:
            UntrustedJsonError: a field is not what is expected.
        """
        if "importing" in packet:
            self.phase, self.importing = Phase.IMPORTING, text_of(packet, "importing", _MAX_NAME_LENGTH)
        elif "ready" in packet:
            self.phase, self.importing = Phase.READY, ""
        elif "refused" in packet:
            reason, final = text_of(packet, "refused", _MAX_REASON_LENGTH), flag_of(packet, "final")
            self._reply = _Reply(0, reason, texts_of(packet, "names", _MAX_NAMES, _MAX_NAME_LENGTH), final)
            if final:
                self.phase, self.refusal = Phase.ENDED, reason
        else:
            self._reply = _Reply(integer_of(packet, "pid", 1, _MAX_PID))

    def _receive(self) -> dict[str, Any] | None:
        try:
            packet = self._connection.recv(_MAX_PACKET_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        if not packet:
            self.phase = Phase.ENDED
            return None
        try:
            return parse_object(packet, _PACKET_BOUNDS)
        except UntrustedJsonError as error:
            self._end_for(str(error))
            return None

    def _end_for(self, reason: str) -> None:
        self.phase, self.refusal = Phase.ENDED, f"it says what makes no sense: {reason}"[:_MAX_REASON_LENGTH]

    def memory_bytes(self) -> int:
        """Its memory, in which shared pages are divided among the processes that share them; 0: not known."""
        try:
            text = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            return 0
        return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), 0)

    def kill(self) -> None:
        """Kill it without waiting for its end."""
        self.phase = Phase.ENDED
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.kill()
            elif _is_our_child(self.pid, None):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it. It has ended when this returns."""
        self.kill()
        self._connection.close()
        with contextlib.suppress(ChildProcessError):
            if self._process is not None:
                self._process.wait()
            elif _is_our_child(self.pid, None):
                os.waitpid(self.pid, 0)


def start_standby(
    interpreter: str,
    environment: Mapping[str, str],
    modules: Sequence[str],
    barred: Sequence[str],
    log: Path,
    account: Account | None,
    group: Cgroup | None = None,
) -> StandbyProcess:
    """Start a standby process.

    Args:
        environment: Its whole environment.
        modules: What it imports first.
        barred: What it does not import.
        log: File to which its output is appended.
        account: As whom it runs; None: as this process.
        group: The cgroup that it joins; None: that of this process.

    Raises:
        OSError: it can't be started.
    """
    room = "x" * min(_MAX_ROOM, _ENVIRONMENT_ROOM + sum(map(len, (*environment, *environment.values()))))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listed = ",".join((*modules, *(f"!{name}" for name in barred)))
    words = [interpreter, str(PROGRAM), str(os.getpid()), str(theirs.fileno()), listed, "." * _ARGUMENTS_ROOM]
    try:
        with theirs:
            whole, passed = {**environment, ROOM_VARIABLE: room}, [theirs.fileno()]
            process = start_process(words, "/", whole, log, pass_fds=passed, account=account, group=group)
    except BaseException:
        ours.close()
        raise
    return StandbyProcess(ours, process.pid, process)


def adopt_standby(descriptor: int, pid: int) -> StandbyProcess:
    """Use a standby process that this process has forked before its program began."""
    standby = StandbyProcess(socket.socket(fileno=descriptor), pid, None)
    standby.phase = Phase.READY  # it has been forked with all that it imports; requests wait until it reads them
    return standby


def _is_our_child(pid: int, account: Account | None) -> bool:
    status = read_status(pid) if pid > 0 else None
    return (
        status is not None
        and status.parent == os.getpid()
        and (status.ended or account is None or belongs_to(pid, account.user_id))
    )
