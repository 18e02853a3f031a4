from __future__ import annotations

import stat
from pathlib import Path

import pytest

from malletrain.cli.operate.service_logs import LogRotation


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_a_log_that_is_too_large_is_copied_and_emptied_under_its_writer(tmp_path: Path) -> None:
    log, rotation = tmp_path / "monitor.log", LogRotation(max_bytes=4, copies=2)
    with log.open("a") as writer:
        for text in ("first", "second", "third"):
            writer.write(text)
            writer.flush()
            assert rotation.apply(log)
        writer.write("now")
        writer.flush()
        assert not rotation.apply(log)
    assert files(tmp_path) == {"monitor.log": "now", "monitor.log.1": "third", "monitor.log.2": "second"}
    assert stat.S_IMODE((tmp_path / "monitor.log.1").stat().st_mode) == 0o600


def test_without_copies_a_large_log_is_emptied(tmp_path: Path) -> None:
    log = tmp_path / "monitor.log"
    log.write_text("text")
    assert LogRotation(max_bytes=3, copies=0).apply(log)
    assert files(tmp_path) == {"monitor.log": ""}


def test_a_log_that_is_not_there_is_none_that_is_too_large(tmp_path: Path) -> None:
    assert not LogRotation(max_bytes=0, copies=1).apply(tmp_path / "monitor.log")


def test_a_log_that_cannot_be_copied_is_emptied_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "monitor.log"
    log.write_text("text")
    (tmp_path / "monitor.log.1").mkdir()
    with pytest.raises(IsADirectoryError):
        LogRotation(max_bytes=3, copies=1).apply(log)
    assert log.read_text() == ""
