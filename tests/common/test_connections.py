"""Connections between workers are cut, no others."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from malletrain.common.connections import between, cut

WORKER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
to, outside = (int(word) for word in sys.stdin.readline().split())
if to:
    peer = socket.create_connection(("127.0.0.1", to))
    third = socket.create_connection(("127.0.0.1", outside))
else:
    peer, _ = listener.accept()
print("connected", flush=True)
print("end", len(peer.recv(1)), flush=True)
sys.stdin.readline()
if to:
    third.sendall(b"x")
"""


@contextmanager
def worker() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_what_is_between_two_workers_is_cut_and_nothing_else() -> None:
    with ExitStack() as stack:
        outside = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        outside.settimeout(30)
        one, two = stack.enter_context(worker()), stack.enter_context(worker())
        port = hear(one)
        hear(two)
        say(one, "0 0")
        say(two, f"{port} {outside.getsockname()[1]}")
        third, _ = outside.accept()
        stack.enter_context(third)
        assert (hear(one), hear(two)) == ("connected", "connected")
        assert cut([one.pid]) == 0
        assert cut([one.pid, two.pid]) == 2
        assert (hear(one), hear(two)) == ("end 0", "end 0")
        say(two, "on")
        third.settimeout(30)
        assert third.recv(1) == b"x"


def test_workers_that_have_gone_have_no_connections() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert cut([gone.pid]) == 0


def test_both_ends_must_belong_to_different_workers() -> None:
    connections = {1: ("a", "b"), 2: ("b", "a"), 3: ("c", "d"), 4: ("d", "c"), 5: ("e", "f"), 6: ("f", "e")}
    assert between(connections, {1: 10, 2: 20, 3: 10, 4: 10, 5: 10}) == [1, 2]
