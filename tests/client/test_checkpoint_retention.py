"""Which checkpoints are kept, and for which saves there is time."""

from __future__ import annotations

from typing import Any

import pytest

from malletrain.client.checkpoints import CheckpointRetention, SaveRate


@pytest.mark.parametrize(
    ("retention", "sizes", "kept"),
    [
        (CheckpointRetention(), [10, 10, 10], 2),
        (CheckpointRetention(1), [10, 10], 1),
        (CheckpointRetention(5), [10, 10], 2),
        (CheckpointRetention(5, 25), [10, 10, 10], 2),
        (CheckpointRetention(5, 30), [10, 10, 10, 10], 3),
        (CheckpointRetention(5, 5), [10, 1], 1),
        (CheckpointRetention(2, 1), [], 0),
    ],
)
def test_the_newest_are_kept_by_number_and_size(retention: CheckpointRetention, sizes: list[int], kept: int) -> None:
    assert retention.count_kept(sizes) == kept


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None])
def test_a_wrong_number_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match="checkpoints_kept: expected a whole number, at least 1, got "):
        CheckpointRetention(count)


@pytest.mark.parametrize("size", [0, -5, 2.5, "1GB", False])
def test_a_wrong_size_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="max_checkpoint_bytes: expected a whole number of bytes, at least 1, or None"):
        CheckpointRetention(2, size)


def test_slow_saves_count_for_as_long_as_they_took() -> None:
    rate = SaveRate()
    assert rate.too_slow(10**12, 1.0) == "", "the first one is tried"
    rate.note(1000, 1.0)
    rate.note(1000, 9.0)
    assert rate.bytes_per_second == 200
    # Those of long ago do not count.
    for _ in range(8):
        rate.note(1000, 1.0)
    assert rate.bytes_per_second == 1000


def test_what_can_not_be_done_in_time_is_said_with_figures() -> None:
    rate = SaveRate()
    rate.note(16_000_000_000, 80.0)
    assert rate.too_slow(16_000_000_000, None) == ""
    assert rate.too_slow(16_000_000_000, 80.0) == ""
    assert rate.too_slow(18_000_000_000, 60.0) == "18.00 GB take about 90.0 s (200.0 MB/s), and 60.0 s are left"
    assert rate.too_slow(18_000_000_000, -2.0).endswith("and 0.0 s are left")
