"""What is mounted where."""

from __future__ import annotations

from pathlib import Path

from malletrain.common.mounts import MountTable, mount_points

EVIL = r"30 23 0:26 / /jobs/j\040one/x rw - fuse.evil evil rw"
TABLE = f"23 1 0:21 / / rw - ext4 /dev/vda rw\n{EVIL}\nnonsense\n"


def test_mount_points() -> None:
    assert list(mount_points(TABLE)) == ["/", "/jobs/j one/x"]


def test_what_is_mounted_at_a_folder() -> None:
    table = MountTable()
    assert table.has_any_of(Path("/proc/self"), Path("/proc"))
    assert not table.has_any_of(Path("/proc/self"))
    assert not table.has_any_of()
    table.close()
    assert table.has_any_of(Path("/proc")), "it opens it again"
    table.close()
