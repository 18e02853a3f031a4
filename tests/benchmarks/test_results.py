"""Figures of a run of `benchmarks/rescale.py`."""

from __future__ import annotations

import pytest

from benchmarks.rescaling.batches import Change
from benchmarks.rescaling.results import missed, missing, p90, result, table
from benchmarks.rescaling.rounds import Sample


def samples(launcher: str, growth: float, recovery: float) -> list[Sample]:
    return [
        *(Sample(launcher, "growth", Change(2 * growth + i, growth + i / 10)) for i in (-1, 0, 1)),
        Sample(launcher, "shrink", Change(0.4, 0.3)),
        Sample(launcher, "kill", Change(recovery, recovery + 0.02)),
    ]


def test_the_medians_are_those_of_pauses_and_for_a_kill_from_the_kill_on() -> None:
    assert result(samples("horovod", 0.5, 0.6)) == {
        "growth_pause_s": {"horovod": 0.5},
        "shrink_pause_s": {"horovod": 0.3},
        "kill_recovery_s": {"horovod": 0.6},
    }


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (9, 9), (10, 9), (11, 10), (20, 18)])
def test_nine_tenths_are_not_above_the_90th_percentile(count: int, expected: int) -> None:
    assert p90([float(value) for value in range(1, count + 1)]) == expected


def test_a_change_that_never_was_is_missing() -> None:
    found = [sample for sample in samples("horovod", 0.5, 0.6) if sample.kind != "kill"]
    assert list(missing(found, ["horovod", "torchrun"])) == [
        ("horovod", "kill"),
        ("torchrun", "growth"),
        ("torchrun", "shrink"),
        ("torchrun", "kill"),
    ]


@pytest.mark.parametrize(
    ("growth", "recovery", "words"),
    [(0.5, 2.0, []), (0.51, 0.4, ["growth pause"]), (0.5, 2.1, ["kill recovery"]), (4.0, 9.0, ["growth", "kill"])],
)
def test_goals(growth: float, recovery: float, words: list[str]) -> None:
    found = missed(samples("horovodrun", 4.0, 30.0) + samples("horovod", growth, recovery))
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_goals_need_both_launchers() -> None:
    assert missed(samples("torchrun", 40.0, 30.0)) == []


def test_the_table_has_a_row_for_each_launcher_and_change() -> None:
    rows = table(samples("horovod", 0.5, 0.6), ["horovod", "torchrun"]).splitlines()
    assert rows[2] == "| horovod | growth | 3 | 1.00 | 2.00 | 0.50 | 0.60 |"
    assert rows[3] == "| torchrun | growth | 0 | | | | |"
    assert len(rows) == 8
