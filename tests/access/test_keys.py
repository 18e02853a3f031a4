"""The key: made once, for its owner only."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from malletrain.runtime.access.keys import load_key
from malletrain.runtime.errors import InvalidInputError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_the_key_and_its_folder_are_their_owners_only(tmp_path: Path) -> None:
    key = load_key(tmp_path)
    assert len(key) == 64
    assert mode(tmp_path / "keys") == 0o700
    assert mode(tmp_path / "keys/token.key") == 0o600
    assert load_key(tmp_path) == key
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["token.key"]


def test_all_who_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(load_key, [tmp_path] * 32))) == 1


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_could_read_is_refused(tmp_path: Path, bits: int) -> None:
    load_key(tmp_path)
    (tmp_path / "keys/token.key").chmod(bits)
    with pytest.raises(InvalidInputError, match=r"token\.key: expected access for its owner only"):
        load_key(tmp_path)


@pytest.mark.parametrize("bits", [0o750, 0o701, 0o777])
def test_a_folder_that_others_could_enter_is_refused(tmp_path: Path, bits: int) -> None:
    load_key(tmp_path)
    (tmp_path / "keys").chmod(bits)
    with pytest.raises(InvalidInputError, match="keys: expected access for its owner only"):
        load_key(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    load_key(tmp_path)
    os.chown(tmp_path / "keys/token.key", 65534, 65534)
    with pytest.raises(InvalidInputError, match="of the account that runs the services"):
        load_key(tmp_path)


def test_a_link_and_a_short_key_are_refused(tmp_path: Path) -> None:
    load_key(tmp_path)
    key = tmp_path / "keys/token.key"
    kept = key.rename(tmp_path / "elsewhere")
    key.symlink_to(kept)
    with pytest.raises(InvalidInputError, match="a folder with a usable key"):
        load_key(tmp_path)
    key.unlink()
    key.write_text("secret!")
    key.chmod(0o600)
    with pytest.raises(InvalidInputError, match="a key of at least 32 bytes") as caught:
        load_key(tmp_path)
    assert "secret!" not in str(caught.value)
