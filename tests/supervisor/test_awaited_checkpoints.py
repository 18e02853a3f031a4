"""How long the next generation waits for a checkpoint that agents copy."""

from __future__ import annotations

import os
from pathlib import Path

from malletrain.common.stage_out import StagedCheckpoint, remove_mark, write_mark
from malletrain.supervisor.restarting.awaited_checkpoints import AwaitedCheckpoints

FIRST, SECOND = StagedCheckpoint(1, 120, 0, 2, "0123abcd"), StagedCheckpoint(1, 120, 1, 2, "0123abcd")


def of(job: Path) -> AwaitedCheckpoints:
    return AwaitedCheckpoints(job / "stage-out")


def test_nobody_waits_where_nothing_is_copied(tmp_path: Path) -> None:
    assert of(tmp_path).seconds_left(100.0) == 0


def test_all_parts_are_waited_for(tmp_path: Path) -> None:
    awaited = of(tmp_path)
    write_mark(tmp_path, FIRST, 30.0)
    write_mark(tmp_path, SECOND, 30.0)
    assert awaited.seconds_left(100.0) == 35
    remove_mark(tmp_path, FIRST)
    assert awaited.seconds_left(110.0) == 25
    remove_mark(tmp_path, SECOND)
    assert awaited.seconds_left(111.0) == 0


def test_what_never_ends_is_waited_for_until_its_limit_and_then_forgotten(tmp_path: Path) -> None:
    awaited = of(tmp_path)
    write_mark(tmp_path, FIRST, 30.0)
    assert awaited.seconds_left(100.0) == 35
    assert awaited.seconds_left(135.0) == 0
    assert not list((tmp_path / "stage-out").iterdir())


def test_a_mark_that_is_as_old_as_no_copy_can_be_is_not_waited_for(tmp_path: Path) -> None:
    write_mark(tmp_path, FIRST, 30.0)
    os.utime(tmp_path / "stage-out" / FIRST.mark, (1000, 1000))
    for now, left in ((1090.0, 35.0), (1100.0, 0.0), (500.0, 35.0)):
        awaited = AwaitedCheckpoints(tmp_path / "stage-out", lambda now=now: now)  # type: ignore[misc]
        assert awaited.seconds_left(100.0) == left
        write_mark(tmp_path, FIRST, 30.0)
        os.utime(tmp_path / "stage-out" / FIRST.mark, (1000, 1000))


def test_marks_that_follow_each_other_keep_nobody_waiting_for_ever(tmp_path: Path) -> None:
    awaited, waited = of(tmp_path), 0
    for number in range(50):
        write_mark(tmp_path, StagedCheckpoint(1, number), 600.0)
        waited += awaited.seconds_left(100.0 + 60 * number) > 0
    assert waited == 11, "ten minutes and five seconds"


def test_a_mark_that_says_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "stage-out"
    folder.mkdir()
    (folder / "120-0").write_text("for ever")
    (folder / "121-0").symlink_to("/dev/zero")
    (folder / "122-0").mkdir()
    assert of(tmp_path).seconds_left(100.0) == 0


def test_a_user_s_many_marks_are_not_all_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "stage-out"
    folder.mkdir()
    for number in range(5000):
        (folder / f"{number}-0").touch()
    awaited = of(tmp_path)
    assert awaited.seconds_left(100.0) == 0
    assert len(list(folder.iterdir())) == 5000 - 4096
