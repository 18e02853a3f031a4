"""Which files an account may believe."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from malletrain.common.trusted_files import PathEntry, UntrustedFileError, check_trusted, distrust, way_to

FOLDER, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
US = frozenset({0, 1000})
ROOT_FOLDER = PathEntry("/", FOLDER | 0o755, 0)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (PathEntry("/f", FILE | 0o644, 0), ""),
        (PathEntry("/f", FILE | 0o600, 1000), ""),
        (PathEntry("/f", FILE | 0o664, 1000, group_writes=False), ""),
        (PathEntry("/f", FILE | 0o600, 1001), "/f belongs to user id 1001"),
        (PathEntry("/f", FILE | 0o666, 1000), "everybody can write /f"),
        (PathEntry("/f", FILE | 0o664, 1000, group_writes=True), "the group of /f can write it"),
        (PathEntry("/d", FOLDER | 0o777, 0), "everybody can write /d"),
        (PathEntry("/d", FOLDER | 0o1777, 0), ""),
        (PathEntry("/d", FOLDER | 0o1777, 1001), "/d belongs to user id 1001"),
        (PathEntry("/f", FILE | 0o1666, 0), "everybody can write /f"),
        (PathEntry("/l", LINK | 0o777, 1000), ""),
        (PathEntry("/l", LINK | 0o777, 1001), "/l belongs to user id 1001"),
    ],
)
def test_who_decides(entry: PathEntry, reason: str) -> None:
    assert distrust([ROOT_FOLDER, entry], US) == reason


def test_the_way_follows_links_and_names_them(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("")
    (tmp_path / "other").symlink_to("real")
    (tmp_path / "link").symlink_to(tmp_path / "other" / ".." / "real" / "file")
    entries = [entry.path.removeprefix(str(tmp_path)) for entry in way_to(tmp_path / "link")]
    assert entries[0] == "/"
    assert entries[-1] == "/real/file"
    assert {"/link", "/other", "/real"} <= set(entries)


def test_links_that_lead_round_and_round_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        check_trusted(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        check_trusted(tmp_path / "missing")


def test_the_error_says_which_entry_it_is(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_text("")
    (tmp_path / "open").chmod(0o777)
    check_trusted(tmp_path, frozenset({0, os.geteuid()}))
    with pytest.raises(UntrustedFileError, match=r"everybody can write .*open"):
        check_trusted(tmp_path / "open" / "file")
