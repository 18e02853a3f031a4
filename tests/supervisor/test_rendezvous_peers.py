"""Strangers at what a job's workers meet at: Horovod's rendezvous and torch's store, both real."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.connection_owner import connection_owner, listed_owner, owners_of_peers, plain_address
from malletrain.supervisor.rendezvous.connection_filters import PeerFilter
from malletrain.supervisor.rendezvous.server import NotPlainError, load_plain_base64
from malletrain.supervisor.workers.slot import Slot
from tests.supervisor.stores import client, listening_ports, store
from tests.support.stranger import as_nobody, needs_another_account
from tests.support.waiting import wait_until

HERE = ("127.0.0.1", 7000)
CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as connection:
    try:
        connection.sendall(sys.argv[2].encode())
        print(connection.recv(1000))
    except ConnectionError:
        print(b"")
"""
KNOCK = """
import socket, sys
connection = socket.socket()
connection.settimeout(1.5)
try:
    connection.bind(("127.0.0.1", int(sys.argv[2])))
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


# -- who a peer is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_owner_of_a_connection_is_known_while_it_lasts(family: socket.AddressFamily, address: str) -> None:
    try:
        listening = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening, socket.create_connection(listening.getsockname()[:2]) as client:
        accepted, peer = listening.accept()
        with accepted:
            assert connection_owner(peer[:2], accepted.getsockname()[:2]) == os.geteuid()
            assert listed_owner(peer[:2], accepted.getsockname()[:2]) == os.geteuid()
            assert owners_of_peers(listening.getsockname()[:2]) == {os.geteuid()}
            assert connection_owner((peer[0], peer[1] ^ 1), accepted.getsockname()[:2]) is None
        client.close()
        wait_until(lambda: connection_owner(peer[:2], listening.getsockname()[:2]) is None, 5, "its end")
    for owner_of in (connection_owner, listed_owner):
        assert owner_of(("10.9.8.7", 1), HERE) is None
        assert owner_of(("not an address", 1), HERE) is None
        assert owner_of(("::1", 1), HERE) is None


def test_ipv4_in_the_form_of_ipv6_is_ipv4() -> None:
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1%eth0") == "fe80::1"
    assert plain_address("n001") == "n001"


def test_nodes_of_the_job_come_in_and_on_this_machine_our_own_account() -> None:
    owners = {("127.0.0.1", 1): 7, ("127.0.0.1", 2): 8, ("10.0.0.9", 3): 7, ("10.0.0.9", 4): None}
    nodes = {"10.0.0.1"}
    peers = PeerFilter(lambda: nodes, lambda peer, _: owners[peer], user_id=7)
    assert peers.admits(("127.0.0.1", 1), HERE)
    assert not peers.admits(("127.0.0.1", 2), HERE)
    assert peers.admits(("10.0.0.1", 9), ("10.0.0.9", 7000))
    assert peers.admits(("::ffff:10.0.0.1", 9), ("::ffff:10.0.0.9", 7000))
    assert not peers.admits(("10.0.0.2", 9), ("10.0.0.9", 7000))
    assert peers.admits(("10.0.0.9", 3), ("10.0.0.9", 7000)), "this machine by its other address"
    assert not peers.admits(("10.0.0.9", 4), ("10.0.0.9", 7000))
    nodes.clear()
    assert not peers.admits(("10.0.0.1", 9), ("10.0.0.9", 7000)), "the node is no longer ours"


# -- pickles ---------------------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_data_is_read(value: object) -> None:
    assert load_plain_base64(base64.b64encode(pickle.dumps(value))) == value


@given(st.binary())
def test_anything_else_is_refused(data: bytes) -> None:
    for encoded in (data, base64.b64encode(data), base64.b64encode(b"\x80\x05" + data)):
        try:
            load_plain_base64(encoded)
        except NotPlainError:
            continue


def test_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(NotPlainError, match="mkdir"):
        load_plain_base64(base64.b64encode(pickle.dumps([Evil(tmp_path / "was here")])))
    assert not (tmp_path / "was here").exists()


# -- Horovod's rendezvous --------------------------------------------------------------------------------------------


class Registered:
    """What a rendezvous was told."""

    def __init__(self) -> None:
        self.found: list[tuple[Slot, object, bytes]] = []

    def place_of(self, slot: Slot) -> Any:
        raise AssertionError(f"nobody asks for {slot}")

    def show_up(self, rank: int) -> None:
        raise AssertionError(f"nobody comes as {rank}")

    def register(self, slot: Slot, addresses: object, key: bytes) -> None:
        self.found.append((slot, addresses, key))


@contextmanager
def rendezvous() -> Iterator[tuple[Registered, int]]:
    server_module = pytest.importorskip("malletrain.supervisor.rendezvous.server", reason="needs Horovod")
    import threading

    told = Registered()
    server = server_module.GuardedRendezvousServer("127.0.0.1", told, PeerFilter(frozenset).admits)
    server.init([])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def put(port: int, path: str, data: bytes, **headers: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data=data, method="PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.horovod
def test_a_worker_registers_with_the_address_that_it_comes_from() -> None:
    with rendezvous() as (told, port):
        value = base64.b64encode(pickle.dumps(({"lo": [("10.9.9.9", 7), ("127.0.0.1", 7)]}, b"key")))
        assert put(port, "worker_addresses/n1:0", value) == 200
        assert told.found == [(Slot("n1", 0), {"peer": [("127.0.0.1", 7)]}, b"key")]


@pytest.mark.horovod
def test_what_is_no_registration_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "was here"
    values: list[object] = [
        Evil(mark),
        ({}, b"key"),
        ({"lo": [("a", 70_000)]}, b"k"),
        ({"lo": [1]}, b"k"),
        7,
        ({}, "k"),
    ]
    with rendezvous() as (told, port):
        for value in values:
            assert put(port, "worker_addresses/n1:0", base64.b64encode(pickle.dumps(value))) == 400, value
        assert put(port, "worker_addresses/n1", base64.b64encode(pickle.dumps(({"lo": [("a", 1)]}, b"k")))) == 400
        assert put(port, "a/b", b"", **{"Content-Length": "99999999999"}) == 400
        assert put(port, "a/b", b"", **{"Content-Length": "-1"}) == 400
        head = urllib.request.Request(f"http://127.0.0.1:{port}/", method="HEAD")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(head, timeout=10)
        assert not told.found
        assert not mark.exists()
        assert put(port, "a/b", b"x") == 200


@pytest.mark.horovod
@needs_another_account
def test_another_account_of_this_machine_is_not_answered() -> None:
    with rendezvous() as (_, port):
        put(port, "a/b", b"a secret")
        assert as_nobody(CONNECT, port, "GET /a/b HTTP/1.0\r\n\r\n") == "b''"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/a/b", timeout=10) as response:
            assert response.read() == b"a secret"


# -- torch's store ---------------------------------------------------------------------------------------------------


def test_workers_use_the_store_and_wait_in_it_for_each_other() -> None:
    with store() as guarded:
        first, second = client(guarded.port), client(guarded.port)
        first.set("key", "value")
        assert second.get("key") == b"value"
        assert second.add("count", 2) == 2
        large = "x" * (4 << 20)
        first.set("large", large)
        assert second.get("large").decode() == large


@needs_another_account
def test_another_account_reaches_the_store_by_neither_port() -> None:
    before = listening_ports()
    with store() as guarded:
        ports = listening_ports() - before
        assert guarded.port in ports
        (inner,) = ports - {guarded.port}
        ours = client(guarded.port)
        ours.set("key", "a secret")
        assert as_nobody(CONNECT, guarded.port, "x" * 64) == "b''"
        assert as_nobody(KNOCK, inner, 0) == "TimeoutError"
        own = {row.split()[1] for row in Path("/proc/net/tcp").read_text().splitlines() if f":{inner:04X} " in row}
        for port in sorted({int(entry.rpartition(":")[2], 16) for entry in own} - {inner}):
            assert as_nobody(KNOCK, inner, port) != "connected", "nor from a port that one of our connections has"
        assert ours.get("key") == b"a secret"


def test_a_port_that_one_of_our_connections_had_is_not_admitted_after_it() -> None:
    before = listening_ports()
    with store() as guarded:
        (inner,) = listening_ports() - before - {guarded.port}
        ours = client(guarded.port)
        ours.set("a", "b")
        wait_until(lambda: len(connected_to(inner)) >= 1, 5, "a connection to the store")
        used = connected_to(inner)
        del ours
        wait_until(lambda: len(connected_to(inner)) < len(used), 10, "its end")
        freed = sorted(used - connected_to(inner))
        for port in freed:
            done = subprocess.run(
                [sys.executable, "-c", KNOCK, str(inner), str(port)], capture_output=True, text=True, check=True
            )
            assert done.stdout.strip() != "connected"


def connected_to(port: int) -> set[int]:
    """Ports from which connections to a port of this machine are open."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[2] == f"0100007F:{port:04X}" and row[3] == "01"}
