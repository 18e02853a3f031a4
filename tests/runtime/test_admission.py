"""Who is admitted: calls by caller, connections by peer, and memory that is given back."""

from __future__ import annotations

import os
import socket

import pytest

from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.admission.connection_limiter import Connection, MemoryReturn, close_own, connections_to, surplus
from malletrain.runtime.admission.interceptor import CallCounts, Caller, CallKind, CallLimits, known_caller
from malletrain.runtime.admission.peers import PeerNames, endpoint_of
from malletrain.runtime.errors import LimitExceededError

LIMITS = CallLimits(in_all=40, per_caller=20, per_stranger=4)


def person(user: str, role: Role = Role.USER, job_id: str = "") -> Caller:
    return known_caller(Identity(user, role, "t", 0.0, 1.0, job_id))


def test_each_caller_has_its_own_limit() -> None:
    counts = CallCounts(LIMITS)
    for _ in range(20):
        counts.begin(person("ada"))
    with pytest.raises(LimitExceededError, match="max_calls_per_caller"):
        counts.begin(person("ada", Role.VIEWER))
    counts.begin(person("grace"))
    counts.end(person("ada"))
    counts.begin(person("ada"))


def test_everybody_has_some_calls_however_many_others_have() -> None:
    counts = CallCounts(LIMITS)
    for user in ("ada", "bob"):
        for _ in range(20):
            counts.begin(person(user))
    for _ in range(16):
        counts.begin(person("grace"))
    with pytest.raises(LimitExceededError, match="max_calls"):
        counts.begin(person("grace"))
    for _ in range(100):
        counts.begin(person("allocator", Role.SERVICE))


def test_strangers_count_apart() -> None:
    counts = CallCounts(LIMITS)
    stranger = Caller(CallKind.UNKNOWN, "uid 1003")
    for _ in range(4):
        counts.begin(stranger)
    with pytest.raises(LimitExceededError, match="without a token"):
        counts.begin(stranger)
    counts.begin(Caller(CallKind.UNKNOWN, "uid 1004"))
    counts.begin(person("uid 1003"))


@pytest.mark.parametrize(
    ("peer", "endpoint"),
    [
        ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("unix:", None),
    ],
)
def test_peers_are_read(peer: str, endpoint: tuple[str, int] | None) -> None:
    assert endpoint_of(peer) == endpoint


def test_peers_are_named_by_account_or_machine() -> None:
    asked: list[object] = []

    def owner_of(peer: object, local: object) -> int:
        asked.append((peer, local))
        return 1003

    names = PeerNames("127.0.0.1:7703", owner_of)
    assert names.name("ipv4:127.0.0.1:4711") == "uid 1003"
    assert asked == [(("127.0.0.1", 4711), ("127.0.0.1", 7703))]
    assert names.name("ipv4:192.0.2.7:4711") == "192.0.2.7"


def test_the_newest_connections_of_a_peer_are_surplus() -> None:
    many = [Connection(number, "127.0.0.1", 1003) for number in range(5)]
    others = [Connection(10 + number, "192.0.2.7", None) for number in range(3)]
    exempt = [Connection(20 + number, "127.0.0.1", 0) for number in range(9)]
    found = surplus([*exempt, *reversed(many), *others], 3, frozenset({0}))
    assert found == many[3:]


def test_own_connections_are_listed_and_closed() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as ours:
            (found,) = connections_to(port)
            assert (found.address, found.owner) == ("127.0.0.1", os.getuid())
            assert found.inode == os.fstat(ours.fileno()).st_ino
            assert close_own([found.inode]) == 1
            client.settimeout(10)
            assert client.recv(1) == b""


async def test_memory_is_given_back_after_it_has_grown_until_calls_have_ended() -> None:
    present, trims = [100 << 20], []
    memory = MemoryReturn(lambda: present[0], lambda: trims.append(present[0]))
    for _ in range(100):  # what was there at the start counts as growth at first
        before = len(trims)
        await memory.look()
        if len(trims) == before:
            break
    trims.clear()
    await memory.look()
    assert trims == []
    present[0] = 200 << 20
    await memory.look()
    present[0] = 150 << 20
    await memory.look()
    assert trims == [200 << 20, 150 << 20]
