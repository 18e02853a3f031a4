"""Files by which feeds find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.peer_registry import PeerAddress, PeerRegistry, parse_address, peer_settings
from malletrain.client.feeding.private_folder import default_folder
from malletrain.common.files import make_private_folder

KEY, OTHER_KEY = "ab" * 16, "cd" * 16
HERE = PeerAddress("127.0.0.1", 7000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_private_folder(tmp_path / "feeds")
    return tmp_path / "feeds"


def test_feeds_of_equal_data_find_each_other(folder: Path) -> None:
    one, two = (PeerRegistry(folder, KEY, name * 16) for name in "12")
    other = PeerRegistry(folder, OTHER_KEY, "3" * 16)
    one.register(HERE)
    two.register(PeerAddress("::1", 7001))
    other.register(PeerAddress("10.0.0.1", 7002))
    assert one.others() == {"2" * 16: PeerAddress("::1", 7001)}
    assert two.others() == {"1" * 16: HERE}
    assert other.others() == {}
    two.withdraw()
    assert one.others() == {}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_one_that_ends_does_not_remove_what_the_next_has_written(folder: Path) -> None:
    old, new, other = (PeerRegistry(folder, KEY, name * 16) for name in "112")
    old.register(HERE)
    new.register(PeerAddress("127.0.0.1", 7001))
    old.withdraw()
    assert other.others() == {"1" * 16: PeerAddress("127.0.0.1", 7001)}
    new.withdraw()
    new.withdraw()
    assert other.others() == {}


def test_what_makes_no_sense_is_left_out(folder: Path, tmp_path: Path) -> None:
    good = PeerRegistry(folder, KEY, "2" * 16)
    good.register(HERE)
    secret = tmp_path / "secret"
    secret.write_text('{"host": "127.0.0.1", "port": 1}')
    (folder / f"{KEY}.{'4' * 16}.json").symlink_to(secret)
    (folder / f"{KEY}.{'5' * 16}.json").write_text("x" * 5000)
    (folder / f"{KEY}.{'6' * 16}.json").write_text("{}")
    (folder / f"{KEY}.{'7' * 16}.json").mkdir()
    (folder / "notes.txt").touch()
    assert PeerRegistry(folder, KEY, "1" * 16).others() == {"2" * 16: HERE}


def test_a_folder_that_others_can_enter_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.chmod(0o750)
    registry = PeerRegistry(folder, KEY, "1" * 16)
    with pytest.raises(PermissionError, match="only this account"):
        registry.register(HERE)
    with pytest.raises(PermissionError, match="only this account"):
        registry.others()
    (tmp_path / "link").symlink_to(folder)
    folder.chmod(0o700)
    with pytest.raises(PermissionError, match="only this account"):
        PeerRegistry(tmp_path / "link", KEY, "1" * 16).others()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"host": "127.0.0.1"}',
        b'{"host": "127.0.0.1", "port": 0}',
        b'{"host": "127.0.0.1", "port": true}',
        b'{"host": "127.0.0.1", "port": 65536}',
        b'{"host": "example.org", "port": 7000}',
        b'{"host": 5.5, "port": 7000}',
        b"[" * 4000,
    ],
)
def test_an_address_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(FeedError, match="address: expected host and port"):
        parse_address(text)


VARIABLES = {
    "MALLETRAIN_FEED_PEERS": "/jobs/j000012/feeds",
    "MALLETRAIN_FLEET": "f000012",
    "MALLETRAIN_JOB_DIR": "/jobs/j000013",
    "MALLETRAIN_NODE": "n1#1",
    "MALLETRAIN_NODE_ADDRESS": "10.0.0.7",
}


def test_settings_are_those_of_the_job_and_the_name_is_that_of_the_node() -> None:
    found = peer_settings(VARIABLES, Path("/tmp/feeds"))
    assert found is not None
    assert found.certificate == "/jobs/j000013/feed.pem"
    assert found.fleet == "f000012.feed.malletrain.internal"
    assert found.address == "10.0.0.7"
    same = peer_settings(VARIABLES | {"MALLETRAIN_NODE": "n1#0", "MALLETRAIN_JOB_DIR": "/x"}, Path("/tmp/feeds"))
    other = peer_settings(VARIABLES | {"MALLETRAIN_NODE": "n2#0"}, Path("/tmp/feeds"))
    assert same is not None
    assert other is not None
    assert same.name == found.name != other.name


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLETRAIN_FEED_PEERS": ""},
        {"MALLETRAIN_FLEET": ""},
        {"MALLETRAIN_JOB_DIR": ""},
        {"MALLETRAIN_FEED_ACROSS_NODES": "0"},
    ],
)
def test_others_share_with_no_other_node(variables: dict[str, str]) -> None:
    assert peer_settings(VARIABLES | variables, Path("/tmp/feeds")) is None


def test_a_virtual_node_has_a_folder_of_its_own() -> None:
    variables = {"MALLETRAIN_FEED_FOLDER": "/x/{node}/feeds", "MALLETRAIN_NODE": "n1#1"}
    assert default_folder(variables) == Path("/x/n1/feeds")
    assert default_folder({"MALLETRAIN_FEED_FOLDER": "/x"}) == Path("/x")
