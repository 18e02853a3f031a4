"""Strangers without a token at a real JobManager: they hold no memory of it, and keep nobody out."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator

import grpc
import psutil
import pytest

from malletrain.cli.shared.settings import load
from malletrain.runtime.channel import open_blocking_channel
from malletrain.v1 import job_manager_pb2, scavenger_pb2
from tests.hostile.floods import MIB, SUBMIT, hold_back_last_bytes, watch_health, watched
from tests.hostile.raw_http2 import RawConnection
from tests.support.stranger import as_nobody, needs_another_account
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

PROTECTED = SUBMIT
OPEN = ("/grpc.health.v1.Health/Check", "/malletrain.v1.AccessService/ExchangeMungeCredential")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    toml = (
        "[limits]\nfirst_message_seconds = 2\nmax_connections_per_peer = 64\n"
        '[scavenger]\nsource = "static"\nnodes = ["n1", "n2"]\ndebounce_seconds = 0\n'
    )
    with deployed(tmp_path_factory.mktemp("up"), toml) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 30, "all nodes")
        yield deployment


def port_of(system: Deployment) -> int:
    return int(system.address("job_manager").rpartition(":")[2])


class Memory:
    """What JobManager has, in bytes, and has had at most."""

    def __init__(self, system: Deployment) -> None:
        self._process = psutil.Process(system.pids()["job_manager"])
        self.peak = self.now()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the peak, until the block is left."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.01):
                self.peak = max(self.peak, self.now())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@pytest.mark.parametrize(("method", "most"), [(PROTECTED, 32 * MIB), *((method, 160 * MIB) for method in OPEN)])
def test_calls_without_a_token_hold_no_memory(system: Deployment, method: str, most: int) -> None:
    memory = Memory(system)
    before = memory.now()
    with memory.watched():
        connections = hold_back_last_bytes(port_of(system), method)
    held = memory.now()
    print(f"{method}: {before / MIB:.0f} MiB, at most {memory.peak / MIB:.0f}, then {held / MIB:.0f}")
    assert memory.peak < before + most
    # While the connections are still open: those calls are over, and what they held has been given back.
    wait_until(lambda: memory.now() < before + 24 * MIB, 30, "the memory to be given back")
    print(f"remaining: {memory.now() / MIB:.0f} MiB")
    for connection in connections:
        connection.close()


def test_a_user_holds_a_bounded_amount(system: Deployment) -> None:
    """Several messages of a user are read at a time, the others wait; and none of them for long."""
    token = system.command("token", "--user", "mallory", "--role", "user").stdout.strip()
    memory = Memory(system)
    before = memory.now()
    with memory.watched():
        connections = hold_back_last_bytes(port_of(system), PROTECTED, token)
    print(f"with a token: {before / MIB:.0f} MiB, at most {memory.peak / MIB:.0f}")
    assert memory.peak < before + 320 * MIB
    assert answers(system)
    for connection in connections:
        connection.close()
    wait_until(lambda: memory.now() < before + 24 * MIB, 30, "the memory to be given back")
    print(f"remaining: {memory.now() / MIB:.0f} MiB")


def answers(system: Deployment) -> bool:
    """Whether somebody else is served, and has a drain confirmed."""
    with contextlib.closing(system.stubs) as stubs:
        stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10)
        drained = stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=["n1"]), timeout=10)
        stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=["n1"]), timeout=10)
        return list(drained.released) == ["n1"]


def test_thousands_of_health_checks_keep_nobody_out(system: Deployment) -> None:
    connections = []
    for name in ("job_manager", "scavenger"):
        port = int(system.address(name).rpartition(":")[2])
        connections += watch_health(port)
    assert answers(system)
    for connection in connections:
        connection.close()
    wait_until(lambda: serves_health(system), 10, "health checks of the same account again")


def serves_health(system: Deployment) -> bool:
    with open_blocking_channel(load(system.config).peer("job_manager"), None) as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
        except grpc.RpcError:
            return False
    return True


FLOOD = """
port = int(sys.argv[1])
opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
for one in opened:
    one.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + b"\\x04" + bytes(5))
import time
deadline = time.monotonic() + 20
def alive(one):
    one.setblocking(False)
    try:
        while data := one.recv(65536):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
while time.monotonic() < deadline and sum(map(alive, opened)) > 64:
    time.sleep(0.1)
print(sum(map(alive, opened)))
"""


@needs_another_account
def test_connections_of_one_account_are_bounded(system: Deployment) -> None:
    own = [RawConnection(port_of(system)) for _ in range(80)]
    assert int(as_nobody(FLOOD, port_of(system))) <= 64
    assert not any(connection.closed for connection in own), "of the services' own account, which is not bound"
    assert answers(system)
    for connection in own:
        connection.close()


@needs_another_account
def test_calls_of_one_account_do_not_count_for_another(system: Deployment) -> None:
    """Nobody fills what it may have; root's health checks are answered all the same."""
    connection = RawConnection(port_of(system))
    for _ in range(200):
        watched(connection)
    wait_until(lambda: not serves_health(system), 10, "root's own health checks refused")
    assert as_nobody(CHECK, port_of(system)) == "0"
    connection.close()


CHECK = """
sys.path[:0] = []
port = int(sys.argv[1])
def literal(name, value):
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value
fields = {b":method": b"POST", b":scheme": b"http", b":path": b"/grpc.health.v1.Health/Check", b":authority": b"x",
          b"te": b"trailers", b"content-type": b"application/grpc"}
block = b"".join(literal(*field) for field in fields.items())
def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
one = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10))
preface = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"
one.sendall(preface + frame(4, 0, 0) + frame(1, 4, 1, block) + frame(0, 1, 1, bytes(5)))
incoming, got = one.makefile("rb"), b""
while True:
    head = incoming.read(9)
    payload = incoming.read(int.from_bytes(head[:3], "big"))
    if head[3] == 0:
        print(0 if payload == bytes([0, 0, 0, 0, 2, 8, 1]) else payload)
        break
    if head[3] == 1 and head[4] & 1:
        print("refused")
        break
"""


def test_a_message_that_does_not_come_ends_its_call(system: Deployment) -> None:
    connection = RawConnection(port_of(system))
    stream = connection.call("/grpc.health.v1.Health/Check")
    assert connection.wait_ended(stream, 20)
    connection.close()


@contextlib.contextmanager
def slow_way(port: int, seconds: float) -> Iterator[int]:
    """A port that leads to another one, where everything arrives so much later: as on a machine that is busy."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65_536)) and not over.wait(seconds):
                target.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        listener.close()


def test_who_is_answered_slowly_is_answered(system: Deployment) -> None:
    """A handshake that took more than 100 ms counted as failed: the busier a service, the fewer calls came through."""
    settings = load(system.config)
    peer = settings.peer("job_manager")
    with (
        slow_way(port_of(system), 0.4) as port,
        open_blocking_channel(dataclasses.replace(peer, address=f"127.0.0.1:{port}"), None) as channel,
    ):
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
    assert answer == b"\x08\x01"
