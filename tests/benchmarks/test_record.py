"""The file of fault trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faulting.record import Trial, append, least_tried, read, summary, table

TRIAL = Trial("kill", True, 0, 3.0, 0.4, 0, 1.5, 0.2, "")


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "build" / "faults.jsonl"
    assert read(path) == []
    append(path, TRIAL)
    append(path, replace(TRIAL, went_on=False, message="two\nlines"))
    assert read(path) == [TRIAL, replace(TRIAL, went_on=False, message="two\nlines")]


@pytest.mark.parametrize("line", ["", "{", "[]", '{"fault": "kill"}'])
def test_a_line_that_is_no_trial_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "faults.jsonl"
    append(path, TRIAL)
    with path.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(ValueError, match=r"faults\.jsonl:2: expected a trial"):
        read(path)


@given(st.lists(st.sampled_from("abc")), st.integers(1, 4))
def test_a_run_goes_on_where_the_last_one_ended(done: list[str], repeats: int) -> None:
    trials = [replace(TRIAL, fault=fault) for fault in done]
    while (fault := least_tried(trials, ["a", "b"], repeats)) is not None:
        trials.append(replace(TRIAL, fault=fault))
    for fault in "ab":
        assert sum(trial.fault == fault for trial in trials) == max(repeats, done.count(fault))
    assert sum(trial.fault == "c" for trial in trials) == done.count("c")


def test_the_table_sums_up_each_fault() -> None:
    trials = [TRIAL, replace(TRIAL, lost_batches=28.0, stalled_s=0.9, restarts=2), replace(TRIAL, fault="other")]
    found = summary(trials, "kill")
    assert found is not None
    assert table([found]).splitlines()[-1] == "| kill | 2 | 2 | 1 | 15.5 (28) | 0.65 (0.90) | 0 |"
    assert summary(trials, "never") is None
