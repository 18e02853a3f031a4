"""Full disks are told before they are full: on a small file system, and with figures that are given."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.client.checkpoints import CheckpointRetention, Checkpoints
from malletrain.client.checksum import ChecksumWriter
from malletrain.client.disk_room import DiskRoom, free_bytes, size_of
from malletrain.client.warn_once import WarnOnce

MB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=False).returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def save(checkpoints: Checkpoints, samples: int, size: int) -> None:
    def write(stream: ChecksumWriter) -> None:
        stream.write(bytes(size))

    checkpoints.store(samples, checkpoints.fill(samples, write, size))


def samples_on(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("samples-")) for path in folder.iterdir())


def test_older_ones_make_room_and_the_newest_stays(disk: Path) -> None:
    checkpoints = Checkpoints(disk, CheckpointRetention(5))
    for samples in (1, 2, 3):
        save(checkpoints, samples, 2 * MB)
    assert samples_on(disk) == [1, 2, 3]
    # 2 MiB are free: one goes for it, not both.
    save(checkpoints, 4, 3 * MB)
    assert samples_on(disk) == [2, 3, 4]
    # Only the newest may be left.
    save(checkpoints, 5, 4 * MB)
    assert samples_on(disk) == [4, 5]


def test_what_does_not_fit_is_not_begun(disk: Path) -> None:
    checkpoints = Checkpoints(disk, CheckpointRetention(5))
    for samples in (1, 2):
        save(checkpoints, samples, 3 * MB)

    def write(_: ChecksumWriter) -> None:
        raise AssertionError("it has begun")

    with pytest.raises(OSError, match=r"a checkpoint needs 6\.3 MB, 2\.1 MB are free") as caught:
        checkpoints.fill(3, write, 6 * MB)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(disk)
    # To remove the older one would have been in vain.
    assert samples_on(disk) == [1, 2]


def test_little_room_is_said_once_until_there_is_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mega = 10**6
    free = [300 * mega]
    room = DiskRoom(WarnOnce(), lambda _: free[0])

    def said() -> str:
        room.look(tmp_path, 100 * mega)
        return capsys.readouterr().err

    assert said() == ""
    free[0] = 299 * mega
    assert said() == f"malletrain: 299.0 MB are free in {tmp_path}: room for 3.0 further checkpoints of 100.0 MB\n"
    free[0] = 10 * mega
    assert said() == ""
    free[0] = 400 * mega
    assert said() == ""
    free[0] = 150 * mega
    assert "room for 1.5 further checkpoints" in said()


def test_a_file_system_that_does_not_tell_is_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room = DiskRoom(WarnOnce(), lambda _: None)
    room.make(tmp_path, 1 << 60, [])
    room.look(tmp_path, 1 << 60)
    assert capsys.readouterr().err == ""
    # One that has no blocks at all, as many in user space.
    assert free_bytes(Path("/proc")) is None
    assert free_bytes(tmp_path / "missing") is None
    assert free_bytes(tmp_path)


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(bytes(5))
    (tmp_path / "c").write_bytes(bytes(7))
    assert size_of(tmp_path) == 12
    assert size_of(tmp_path / "c") == 7
    assert size_of(tmp_path / "missing") == 0


def test_all_kept_together_are_within_their_bytes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointRetention(10, 2500))
    for samples in (1, 2, 3):
        save(checkpoints, samples, 1000)
    assert samples_on(tmp_path) == [2, 3]
    save(checkpoints, 4, 5000)
    assert samples_on(tmp_path) == [4], "the newest one stays, however large"
