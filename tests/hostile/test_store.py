"""Another account of the machine and torch's store, where the kernel gives the job's account no packet filter."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NoReturn

import pytest

from malletrain.supervisor.rendezvous import guarded_store
from malletrain.supervisor.rendezvous.connection_filters import new_key, require_signatures
from tests.hostile.strangers import STRANGER
from tests.supervisor.stores import client, listening_ports, store
from tests.support.stranger import needs_another_account, run_as_number

KNOCK = """
knocking = socket.socket()
knocking.settimeout(1)
try:
    knocking.connect(("127.0.0.1", int(sys.argv[1])))
    knocking.sendall(b"x" * 64)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


def refuse(*_: object) -> NoReturn:
    raise PermissionError(1, "Operation not permitted")


def has_signatures() -> bool:
    with socket.socket() as tried:
        try:
            require_signatures(tried, new_key())
        except OSError:
            return False
    return True


@needs_another_account
@pytest.mark.skipif(not has_signatures(), reason="the kernel has no signed TCP connections")
def test_without_a_packet_filter_another_account_reaches_the_store_by_neither_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_store, "admit_only", refuse)
    before = listening_ports()
    with store() as guarded:
        ports = listening_ports() - before
        (inner,) = ports - {guarded.port}
        first, second = client(guarded.port), client(guarded.port)
        first.set("key", "a secret")
        assert second.get("key") == b"a secret"
        assert run_as_number(STRANGER, Path("/"), KNOCK, inner).stdout.strip() == "TimeoutError"
        first.set("large", large := "x" * (4 << 20))
        assert second.get("large").decode() == large


def test_where_the_kernel_keeps_nobody_out_the_store_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_store, "admit_only", refuse)
    monkeypatch.setattr(guarded_store, "require_signatures", refuse)
    before = listening_ports()
    with pytest.raises(OSError, match=r"job_manager\.accept_open_store"), store():
        pass
    assert not listening_ports() - before, "servers of other tests may still be closing theirs"


def test_an_operator_may_accept_an_open_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guarded_store, "admit_only", refuse)
    monkeypatch.setattr(guarded_store, "require_signatures", refuse)
    with store(may_be_open=True) as guarded:
        client(guarded.port).set("key", "value")
        assert client(guarded.port).get("key") == b"value"
    assert "accounts on this machine can reach the store" in caplog.text


def test_only_who_has_the_key_connects() -> None:
    if not has_signatures():
        pytest.skip("the kernel has no signed TCP connections")
    key = new_key()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as ours, socket.socket() as other:
        require_signatures(listening, key)
        require_signatures(ours, key)
        require_signatures(other, new_key())
        ours.connect(listening.getsockname())
        other.settimeout(0.5)
        with pytest.raises(TimeoutError):
            other.connect(listening.getsockname())
