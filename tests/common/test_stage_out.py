"""What is said of a checkpoint that agents copy: in memory, in the environment, in the job's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.stage_out import (
    MAX_SECONDS,
    StagedCheckpoint,
    StageOutTerms,
    is_awaited,
    read_staged,
    remove_mark,
    seconds_of_mark,
    terms_from_text,
    write_mark,
)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def fill(memory: int, content: bytes) -> None:
    os.truncate(memory, 0)
    os.pwrite(memory, content, 0)


@pytest.mark.parametrize("staged", [StagedCheckpoint(4, 120), StagedCheckpoint(4, 120, 2, 3, "0123abcd")])
def test_what_is_left_is_read_again(memory: int, staged: StagedCheckpoint) -> None:
    fill(memory, b"abcd" + staged.ending())
    assert read_staged(memory) == staged


@pytest.mark.parametrize(
    "staged",
    [
        StagedCheckpoint(5, 120),
        StagedCheckpoint(3, 120),
        StagedCheckpoint(4, -1),
        StagedCheckpoint(4, 1 << 62),
        StagedCheckpoint(4, 120, 1),
        StagedCheckpoint(4, 120, -1),
        StagedCheckpoint(4, 120, 3, 3, "0123abcd"),
        StagedCheckpoint(4, 120, 0, 1 << 40, "0123abcd"),
        StagedCheckpoint(4, 120, 0, -1, "0123abcd"),
        StagedCheckpoint(4, 120, 0, 2, "../../.."),
        StagedCheckpoint(4, 120, 0, 2, ""),
        StagedCheckpoint(4, 120, 0, 0, "0123abcd"),
    ],
)
def test_what_makes_no_sense_is_nothing(memory: int, staged: StagedCheckpoint) -> None:
    fill(memory, b"abcd" + staged.ending())
    assert read_staged(memory) is None


@given(st.binary(max_size=100))
def test_no_other_content_is_a_checkpoint(content: bytes) -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    try:
        fill(descriptor, content)
        assert read_staged(descriptor) is None
    finally:
        os.close(descriptor)


def test_half_of_it_does_not_count(memory: int) -> None:
    whole = b"abcd" + StagedCheckpoint(4, 120).ending()
    for length in range(len(whole)):
        fill(memory, whole[:length])
        assert read_staged(memory) is None


def test_terms_come_through_the_environment() -> None:
    terms = StageOutTerms(12.5, 1 << 40)
    assert terms_from_text(terms.to_text()) == terms
    assert terms_from_text("1e9 1") == StageOutTerms(MAX_SECONDS, 1)


@pytest.mark.parametrize("text", ["", "0 5", "5 0", "5", "-1 5", "5 -5", "nan 5", "a b", "5 5 5"])
def test_other_words_offer_nothing(text: str) -> None:
    assert terms_from_text(text) is None


@pytest.mark.parametrize(
    ("save_seconds", "left", "better"),
    [
        (4.0, 2.0, True),
        (4.0, 5.0, False),  # there is time for a save
        (70.0, 2.0, False),  # the agent has no time for it either
        (4.0, None, False),
    ],
)
def test_a_checkpoint_is_staged_out_where_only_the_agent_has_the_time(
    save_seconds: float, left: float | None, better: bool
) -> None:
    assert StageOutTerms(60.0, 1).is_better(save_seconds, left) is better


def test_a_mark_says_for_how_long(tmp_path: Path) -> None:
    staged = StagedCheckpoint(4, 120, 1, 2, "0123abcd")
    assert not is_awaited(tmp_path, staged)
    write_mark(tmp_path, staged, 30.0)
    mark = tmp_path / "stage-out" / "120-1"
    assert seconds_of_mark(mark) == 30
    assert is_awaited(tmp_path, staged)
    remove_mark(tmp_path, staged)
    remove_mark(tmp_path, staged)
    assert not is_awaited(tmp_path, staged)


@pytest.mark.parametrize(("text", "seconds"), [("1e99", MAX_SECONDS), ("", 0), ("-3", 0), ("nan", 0), ("soon", 0)])
def test_no_mark_is_believed_beyond_the_limit(tmp_path: Path, text: str, seconds: float) -> None:
    (tmp_path / "mark").write_text(text)
    assert seconds_of_mark(tmp_path / "mark") == seconds


def test_a_mark_that_is_a_link_or_a_pipe_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("30")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert [seconds_of_mark(tmp_path / name) for name in ("file", "link", "pipe", "none")] == [30, 0, 0, 0]
