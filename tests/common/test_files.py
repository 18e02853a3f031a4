"""Files are replaced in one step, and no link is followed on the way."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import pytest

from malletrain.common.files import make_private_folder, write_atomically


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, "old", sync=sync)
    write_atomically(path, "né\n", sync=sync)
    assert path.read_bytes() == "né\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_asked_for_less_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "public", "")
        write_atomically(tmp_path / "secret", "", mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "public").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "known")
    target = tmp_path / "target"
    (tmp_path / ".file.known").symlink_to(target)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", "text")
    assert not target.exists()
    assert (tmp_path / ".file.known").is_symlink(), "it is not ours to remove"


def test_a_link_at_the_name_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("theirs")
    link.symlink_to(target)
    write_atomically(link, "ours")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("theirs", "ours", False)


def test_a_failure_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", "text")


def test_a_private_folder_is_closed_to_others_also_where_it_was_open(tmp_path: Path) -> None:
    for name, made in (("new", False), ("open", True)):
        folder = tmp_path / name
        if made:
            folder.mkdir(0o755)
        make_private_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
