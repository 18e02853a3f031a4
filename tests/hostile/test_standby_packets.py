"""A standby process is a user's: whatever it says, its agent goes on, and leaves the node when that is wanted back."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest

from malletrain.common.standby.child import Order
from malletrain.common.standby.preload import RefusedError
from malletrain.common.standby.process import Phase, StandbyProcess
from tests.agent.running import agents
from tests.support.waiting import wait_until

_PIDFD_GETFD = 438
_READY = re.compile(r"standby process (\d+) is ready")
ORDER = Order(("python",), "train.py", "script", (), "/", {}, worker=True)
DEEP = b'{"a":' + b"[" * 20_000
PACKETS = {
    "nesting": DEEP,
    "a list": b"[]",
    "gibberish": b"\x80\x04\x95",
    "names that are no list": b'{"refused": "x", "names": 5}',
    "names that are no texts": b'{"refused": "x", "names": [1, {}]}',
    "a reason that is no text": b'{"refused": {"a": 1}}',
    "final that is no flag": b'{"refused": "x", "final": "no"}',
    "a pid beyond all": b'{"pid": ' + b"9" * 4000 + b"}",
    "a pid that no path can hold": b'{"pid": ' + b"9" * 39 + b"}",
    "a pid below all": b'{"pid": -1}',
    "a pid that is a flag": b'{"pid": true}',
    "no pid": b'{"pid": null}',
    "a module that is no text": b'{"importing": [[]]}',
}


@pytest.fixture
def ends() -> Iterator[tuple[StandbyProcess, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    standby = StandbyProcess(ours, 0, None)
    with ours, theirs:
        yield standby, theirs


@pytest.mark.parametrize("packet", PACKETS.values(), ids=PACKETS)
def test_a_packet_that_makes_no_sense_ends_the_standby_process_and_nothing_else(
    ends: tuple[StandbyProcess, socket.socket], packet: bytes
) -> None:
    standby, theirs = ends
    theirs.send(packet)
    assert standby.poll() is Phase.ENDED
    assert standby.refusal


@pytest.mark.parametrize("packet", PACKETS.values(), ids=PACKETS)
def test_an_answer_that_makes_no_sense_is_a_refusal(ends: tuple[StandbyProcess, socket.socket], packet: bytes) -> None:
    standby, theirs = ends
    theirs.send(packet)
    with pytest.raises(RefusedError):
        standby.fork(ORDER, 0, (), None)


def test_one_that_never_stops_talking_is_not_listened_to_for_ever(ends: tuple[StandbyProcess, socket.socket]) -> None:
    standby, theirs = ends
    theirs.setblocking(False)
    sent = 0

    class Endless:
        """A connection in which there is always one more packet."""

        def recv(self, size: int) -> bytes:
            nonlocal sent
            sent += 1
            if sent > 100_000:
                raise AssertionError("still listening")
            return b'{"importing": "one.more"}'[:size]

    standby._connection = Endless()  # type: ignore[assignment]
    assert standby.poll() is Phase.IMPORTING
    assert sent <= 1000


def _socket_of(pid: int) -> socket.socket:
    """The connection of a standby process to its agent, as another process of its user gets it."""
    library, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    try:
        for name in islice(os.listdir(f"/proc/{pid}/fd"), 100):  # noqa: PTH208 - names are numbers
            descriptor = library.syscall(_PIDFD_GETFD, process, int(name), 0)
            if descriptor < 0:
                if ctypes.get_errno() == 1:
                    pytest.skip("this kernel lets no process of a user look into another one")
                continue
            try:
                found = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                continue
            if found.family == socket.AF_UNIX and found.type == socket.SOCK_SEQPACKET:
                return found
            found.close()
    finally:
        os.close(process)
    raise AssertionError("no connection")


@pytest.mark.timeout(180)
@pytest.mark.processes
def test_a_job_that_speaks_for_its_standby_process_does_not_keep_the_node(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", standby_mib=2048) as running:
        agent = running["n1"]
        ready = wait_until(lambda: _READY.findall(agent.said), 120, "a standby process")
        with _socket_of(int(ready[0])) as connection:
            connection.send(DEEP)
        wait_until(lambda: "no standby process for" in agent.said, 30, "that it is given up")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 0
        assert not psutil.pid_exists(int(ready[0]))
