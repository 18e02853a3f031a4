"""Files are replaced in one step, and no link is followed on the way."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

import pytest

from malletrain.common.files import make_private_folder, write_atomically, write_once_there_is_room


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


class Disk:
    """`os.fsync` on a disk that is full until somebody has waited a few times."""

    def __init__(self, full_for: int, error: int = errno.ENOSPC) -> None:
        self.left = full_for
        self._error = error

    def fsync(self, _: int) -> None:
        if self.left:
            raise OSError(self._error, os.strerror(self._error))

    def pause(self, _: float) -> None:
        self.left -= 1


def test_a_file_is_written_once_the_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(full_for=3)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    write_once_there_is_room(tmp_path / "file", "text", 60.0, disk.pause)
    assert (tmp_path / "file").read_text() == "text"
    assert disk.left == 0


@pytest.mark.parametrize(("error", "paused"), [(errno.ENOSPC, 5), (errno.EDQUOT, 5), (errno.EIO, 0)])
def test_a_disk_that_stays_full_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, paused: int
) -> None:
    disk = Disk(1000, error)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    with pytest.raises(OSError, match=os.strerror(error)):
        write_once_there_is_room(tmp_path / "file", "text", 1.0, disk.pause)
    assert list(tmp_path.iterdir()) == []
    assert 1000 - disk.left == paused
