"""Nobody but the account itself can reach its feeds."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from malletrain.client.feeding.private_folder import PrivateFolder, check_peer, default_folder
from malletrain.client.feeding.server import accept_all
from tests.support.everybody import folder_of_everybody
from tests.support.stranger import as_nobody, needs_another_account

CONNECT = """
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    connection.connect(sys.argv[1])
    print(repr(connection.recv(10)))
except OSError as error:
    print(type(error).__name__)
"""


def test_the_folder_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "feeds"
    PrivateFolder(path).close()
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    PrivateFolder(path).close()
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "feeds").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        PrivateFolder(tmp_path / "feeds")


def test_one_at_a_time_starts_a_feed(tmp_path: Path) -> None:
    first, second = PrivateFolder(tmp_path), PrivateFolder(tmp_path)
    with first.locked() as one, second.locked() as other:
        assert (one, other) == (True, False)
    with second.locked() as other:
        assert other
    first.close()
    second.close()


def test_a_name_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path)
    assert folder.connect("feed") is None
    folder.listen("feed").close()
    assert folder.connect("feed") is None
    with folder.listen("feed"):
        connection = folder.connect("feed")
        assert connection is not None
        connection.close()
    folder.remove("feed")
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_on_this_machine_and_the_accounts_own() -> None:
    assert default_folder({}) == Path(f"/tmp/malletrain-feeds-{os.geteuid()}")
    assert default_folder({"TMPDIR": "/scratch", "MALLETRAIN_FEED_FOLDER": "/run/feeds"}) == Path("/run/feeds")


@needs_another_account
def test_another_account_can_neither_connect_nor_be_connected_to() -> None:
    with folder_of_everybody() as open_folder:
        folder = PrivateFolder(open_folder / "feeds")
        with folder.listen("feed") as listening:
            listening.setblocking(False)
            assert as_nobody(CONNECT, open_folder / "feeds" / "feed") == "PermissionError"
            # Even if it came to the socket, it would get nothing.
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as within_reach:
                within_reach.bind(str(open_folder / "socket"))
                (open_folder / "socket").chmod(0o777)
                within_reach.listen()
                within_reach.setblocking(False)
                check_is_shut_out(within_reach, open_folder / "socket")
        folder.close()

        # The folder of somebody else is refused.
        other = open_folder / "theirs"
        other.mkdir(mode=0o700)
        os.chown(other, 65534, 65534)
        with pytest.raises(PermissionError, match="only this account can enter"):
            PrivateFolder(other)


def check_is_shut_out(listening: socket.socket, path: Path) -> None:
    """A connection of another account is closed before anything is read or sent."""
    code = CONNECT.replace("connection.recv(10)", "connection.getpeername()")
    assert as_nobody(code, path) == repr(str(path))
    assert list(accept_all(listening)) == []


@needs_another_account
def test_the_other_end_is_known_by_its_account() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        check_peer(one)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError, match="expected a process of account 65534, got one of 0"):
                check_peer(one)
        finally:
            os.seteuid(0)
