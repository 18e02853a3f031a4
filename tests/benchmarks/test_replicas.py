"""The benchmark of replicas over seeds: what it makes of notes, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from benchmarks.replicas import LINES, Run, costs_of, curve_of, script_in, table


def note(before: int, rank: int, size: int, loss: float, time: float) -> dict[str, Any]:
    return {"before": before, "first": before + rank, "rank": rank, "size": size, "loss": loss, "time": time}


def test_a_step_that_a_killed_worker_has_not_noted_has_no_loss() -> None:
    whole = [note(0, 0, 2, 1.0, 1.0), note(0, 1, 2, 3.0, 1.1)]
    assert curve_of([*whole, note(24, 0, 2, 5.0, 2.0)]) == (2.0, None)


def test_of_a_step_that_was_made_twice_the_last_time_counts() -> None:
    again = [note(0, 0, 2, 1.0, 1.0), note(0, 1, 2, 3.0, 1.1), note(0, 0, 1, 7.0, 9.0)]
    assert curve_of(again) == (7.0,)


def test_a_change_costs_the_time_between_two_steps_and_the_samples_between() -> None:
    times = [1.0, 2.0, 3.0, 13.0, 14.0, 15.0]
    lines = [note(before, 0, 2, 1.0, time) for before, time in zip((0, 24, 48, 48, 72, 96), times, strict=True)]
    assert costs_of(lines, [3.0]) == ({"growth": 9.0}, {"growth": 24})


def test_the_table_compares_seed_by_seed() -> None:
    costs = {"growth": 1.0, "kill -9": 2.0, "reclaim of a replica": 3.0, "shrink": 4.0}
    again = dict.fromkeys(costs, 0)
    runs = [
        Run(seed, disturbed, 2.0 + seed + disturbed / 2, (1.0 + seed, None), costs if disturbed else {}, again)
        for seed in range(2)
        for disturbed in (False, True)
    ]
    said = table(runs)
    assert "undisturbed   2.5000  0.7071" in said
    assert "difference  +0.50000" in said
    assert "kill -9                 2.00 s (2.00 to 2.00), trained again: 0, 0" in said
    assert table(runs[:2]) == "fewer than two seeds with both trainings"


def test_the_example_still_has_the_lines_that_are_replaced(tmp_path: Path) -> None:
    text = script_in(tmp_path / "job").read_text()
    assert all(other in text for other in LINES.values())
