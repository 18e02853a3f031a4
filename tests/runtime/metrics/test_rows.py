from __future__ import annotations

from malletrain.runtime.metrics.rows import OTHER, JobRow, limit_rows

ROWS = tuple(JobRow(f"j{number}", (float(number), 1.0), "ada") for number in range(1, 6))


def test_few_rows_stay_as_they_are() -> None:
    assert tuple(limit_rows(ROWS, 5)) == ROWS
    assert tuple(limit_rows((), 5)) == ()


def test_the_rest_is_summed_in_one_row_without_an_owner() -> None:
    assert tuple(limit_rows(ROWS, 2)) == (*ROWS[:2], JobRow(OTHER, (12.0, 3.0)))
    assert tuple(limit_rows(ROWS, 0)) == (JobRow(OTHER, (15.0, 5.0)),)
