"""Folders that users make: names that they take first, and folders that nobody could delete."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.common import job_folder
from malletrain.common.accounts import account_named
from malletrain.job_manager.launching import folder as folders
from malletrain.job_manager.launching import removing
from malletrain.job_manager.launching.folder import JobFolder, StartPostponedError, earlier_socket_folder, socket_path
from malletrain.job_manager.launching.removing import TooManyEntriesError, remove_folder
from malletrain.job_manager.storage.retention import Retention
from tests.support.clocks import ManualClock
from tests.support.stranger import needs_another_account

DEPTH = 1200


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /tmp, where anybody can make folders."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", made)
        monkeypatch.setattr(folders, "RUN_FOLDER", tmp_path / "none")
        yield Path(made)


@needs_another_account
def test_a_stranger_who_takes_the_name_of_our_folder_keeps_no_job_from_starting(tmp_path: Path, tmp: Path) -> None:
    state_dir = tmp_path / ("s" * 100)
    taken = earlier_socket_folder(state_dir)
    taken.mkdir()
    nobody = pwd.getpwnam("nobody")
    os.chown(taken, nobody.pw_uid, nobody.pw_gid)
    account = account_named("nobody")
    for whose in (None, account):
        path = socket_path(state_dir, "j000001", 1, whose)
        assert not path.is_relative_to(taken)
        assert path == socket_path(state_dir, "j000001", 1, whose), "the next JobManager finds it again"
        assert path.relative_to(tmp)
        above = tmp / path.relative_to(tmp).parts[0]
        assert above.stat().st_uid == os.geteuid()
        assert stat.S_IMODE(above.stat().st_mode) == (0o700 if whose is None else 0o711)


@needs_another_account
@pytest.mark.usefixtures("tmp")
def test_a_folder_that_has_become_somebody_elses_is_not_used(tmp_path: Path) -> None:
    state_dir = tmp_path / ("s" * 100)
    first = socket_path(state_dir, "j000001", 1).parent
    first.rmdir()
    first.mkdir()
    os.chown(first, pwd.getpwnam("nobody").pw_uid, -1)
    assert socket_path(state_dir, "j000001", 1).parent != first


@pytest.mark.usefixtures("tmp")
def test_supervisors_of_the_last_version_are_found_where_they_serve(tmp_path: Path) -> None:
    state_dir = tmp_path / ("s" * 100)
    earlier = earlier_socket_folder(state_dir)
    earlier.mkdir(mode=0o700)
    (earlier / "j000001.1.sock").touch()
    assert socket_path(state_dir, "j000001", 1) == earlier / "j000001.1.sock"
    assert socket_path(state_dir, "j000001", 2).parent != earlier


@pytest.mark.usefixtures("tmp")
def test_that_there_is_no_folder_is_no_failure_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> str:
        raise PermissionError(13, "not here")

    monkeypatch.setattr(tempfile, "mkdtemp", fails)
    with pytest.raises(StartPostponedError, match="no folder for its supervisor's socket"):
        socket_path(tmp_path / ("s" * 100), "j000001", 1)


def nested(folder: Path, depth: int) -> None:
    """Folders within each other, deeper than any path can be."""
    folder.mkdir(parents=True)
    present = os.open(folder, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d", dir_fd=present)
        if number % 300 == 0:
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=present))
        inner = os.open("d", os.O_RDONLY, dir_fd=present)
        os.close(present)
        present = inner
    os.close(present)


def test_a_folder_of_any_depth_is_deleted(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "j000001")
    folder.prepare()
    nested(folder.path / job_folder.COMPILED_FOLDER, DEPTH)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (folder.path / job_folder.COMPILED_FOLDER / "link").symlink_to(outside)
    folder.remove_own_files()
    assert not folder.path.exists()
    assert (outside / "kept").exists()


def test_no_more_is_deleted_at_a_time_than_is_good(tmp_path: Path) -> None:
    nested(tmp_path / "compiled", 50)
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(8):
            with pytest.raises(TooManyEntriesError):
                remove_folder("compiled", above, max_entries=10)
            if sum(1 for _ in (tmp_path / "compiled").rglob("*")) <= 10:
                break
        remove_folder("compiled", above)
    finally:
        os.close(above)
    assert not (tmp_path / "compiled").exists()


def test_a_log_folder_without_end_is_deleted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_ENTRIES", 10)
    folder = JobFolder(tmp_path / "j000001")
    folder.prepare()
    for number in range(25):
        (folder.logs / f"n.{number}.log").touch()
    for _ in range(2):
        with pytest.raises(TooManyEntriesError):
            folder.remove_own_files()
    folder.remove_own_files()
    assert not folder.path.exists()


class _Store:
    """Three jobs that ended long ago."""

    def ended_before(self, before: float, after: int, most: int) -> list[int]:
        return [number for number in (1, 2, 3) if number > after]

    def removable(self, numbers: list[int], before: float) -> tuple[list[int], list[str]]:
        return numbers, []


async def test_one_job_that_can_not_be_removed_ends_nothing_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[int] = []
    plain = JobFolder.remove_own_files

    def hostile(self: JobFolder) -> None:
        if self.path.name == "j000002":
            raise RecursionError("as shutil.rmtree does")
        plain(self)

    async def forget(_: Collection[str]) -> bool:
        return True

    async def remove(numbers: Collection[int], _: Collection[str]) -> None:
        removed.extend(numbers)

    monkeypatch.setattr(JobFolder, "remove_own_files", hostile)
    store: Any = _Store()
    clock = ManualClock(1e9)
    retention = Retention(store, lambda job: JobFolder(tmp_path / job), forget, remove, tmp_path, 1.0, clock)
    assert await retention.remove_batch() == 3
    assert removed == [1, 3]
    assert removing.MAX_ENTRIES > DEPTH
