"""A head node and other nodes as network namespaces of this machine, each with an address of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

INTERFACE = "mt0"
"""Name of the interface by which nodes reach each other, on each of them."""
HEAD_ADDRESS = "10.77.0.1"
_FILES = Path("/etc/netns")
_CAPTURE = """
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
frames.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        frame, place = frames.recvfrom(1 << 16)
        if place[0] != "lo":
            file.write(frame)
"""
_PROBE = """
import socket, sys
socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
try:
    socket.create_connection((sys.argv[1], 9), 5)
except ConnectionRefusedError:
    pass
"""
"""Whether there may be a capture, and whether the other side can be reached: nobody listens there, and it says so."""


@dataclass(frozen=True)
class Namespaces:
    """Namespaces that are connected by a bridge on the head node.

    Attributes:
        head: Namespace of the head node.
        nodes: Namespace of each node, by the node's name.
    """

    head: str
    nodes: dict[str, str]

    @property
    def on_head(self) -> tuple[str, ...]:
        """What goes before a command that runs on the head node."""
        return "ip", "netns", "exec", self.head

    def on(self, node: str) -> tuple[str, ...]:
        """What goes before a command that runs on a node."""
        return "ip", "netns", "exec", self.nodes[node]

    def processes(self, node: str) -> list[int]:
        """Process ids of what runs on a node."""
        done = run("ip", "netns", "pids", self.nodes[node])
        return [int(word) for word in done.split()]

    @contextmanager
    def captured(self, file: Path) -> Iterator[None]:
        """Write to a file all that passes the head node's bridge, between nodes and to the head node."""
        process = subprocess.Popen([*self.on_head, sys.executable, "-c", _CAPTURE, str(file)])
        try:
            wait_until(file.exists, 20, "the capture")
            yield
        finally:
            process.terminate()
            process.wait(10)


def missing() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and iproute2"
    try:
        with namespaces("probe") as made:
            run(*made.on("probe"), sys.executable, "-c", _PROBE, HEAD_ADDRESS)
            run(*made.on_head, sys.executable, "-c", _PROBE, "10.77.0.11")
    except (AssertionError, OSError) as error:
        return f"network namespaces can't be made here, or not connected: {error}"
    return ""


@contextmanager
def namespaces(*nodes: str) -> Iterator[Namespaces]:
    """Make them; kill what runs there and remove them."""
    mark = f"mt{os.getpid()}"
    made = Namespaces(f"{mark}-head", {node: f"{mark}-{node}" for node in nodes})
    every = [made.head, *made.nodes.values()]
    try:
        for name in every:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", made.head, "link", "add", INTERFACE, "type", "bridge")
        run("ip", "-n", made.head, "address", "add", f"{HEAD_ADDRESS}/24", "dev", INTERFACE)
        run("ip", "-n", made.head, "link", "set", INTERFACE, "up")
        for number, name in enumerate(made.nodes.values(), 1):
            _connect(made.head, name, number)
        yield made
    finally:
        for name in every:
            with contextlib.suppress(AssertionError):
                for pid in run("ip", "netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                run("ip", "netns", "delete", name)
            shutil.rmtree(_FILES / name, ignore_errors=True)


def _connect(head: str, node: str, number: int) -> None:
    address = f"10.77.0.{10 + number}"
    # `ip netns exec` shows these files in place of those in /etc. Horovod (0.28.1) looks its own host's name up for one
    # of its connections, whatever interface it is told.
    (_FILES / node).mkdir(parents=True, exist_ok=True)
    (_FILES / node / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
    run("ip", "-n", node, "link", "add", INTERFACE, "type", "veth", "peer", "name", f"port{number}", "netns", head)
    run("ip", "-n", node, "address", "add", f"{address}/24", "dev", INTERFACE)
    run("ip", "-n", node, "link", "set", INTERFACE, "up")
    run("ip", "-n", head, "link", "set", f"port{number}", "master", INTERFACE, "up")


def run(*command: str) -> str:
    """What a command prints.

    Raises:
        AssertionError: it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
