"""How trainings are compared, seed by seed, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from benchmarks.learning.comparing import compare, interval
from benchmarks.learning.runs import SCALES, Learned, Rows

STATIC = (2,)


def row(seed: int, scales: tuple[int, ...], loss: float, accuracy: float | None = None) -> Learned:
    return Learned("fsdp2", seed, scales, 100, loss, accuracy)


def test_the_interval_is_that_of_students_t() -> None:
    # Mean 2, standard deviation 1, 1 degree of freedom less than values: 4.303 / sqrt(3) on both sides.
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0 - 2.4841, 2.0 + 2.4841), abs=1e-3)
    with pytest.raises(ValueError, match=r"^differences: expected 2 to 10, got 1"):
        interval([1.0])


def test_pairs_are_of_the_same_seed() -> None:
    rows = [row(0, STATIC, 1.0), row(1, STATIC, 5.0), row(1, SCALES, 5.1), row(0, SCALES, 1.2), row(2, STATIC, 9.0)]
    found = compare(rows, "fsdp2", "loss")
    assert found is not None
    assert (found.seeds, found.static, found.elastic) == (2, 3.0, pytest.approx(3.15))
    assert found.low < 0.15 < found.high
    assert found.within_noise
    assert compare(rows, "fsdp2", "accuracy") is None
    assert compare(rows[:2], "fsdp2", "loss") is None


def test_a_difference_that_all_seeds_show_is_none_of_noise() -> None:
    rows = [row(seed, scales, seed + len(scales) + 0.01 * seed) for seed in range(5) for scales in (STATIC, SCALES)]
    found = compare(rows, "fsdp2", "loss")
    assert found is not None
    assert not found.within_noise


def test_rows_that_are_kept_are_not_made_again(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "kept" / "rows.jsonl")
    rows.add(row(3, SCALES, 1.5))
    again = Rows(tmp_path / "kept" / "rows.jsonl")
    assert again.found == rows.found
    assert again.has("fsdp2", 3, SCALES)
    assert not again.has("fsdp2", 3, STATIC)
    assert not again.has("lightning", 3, SCALES)
