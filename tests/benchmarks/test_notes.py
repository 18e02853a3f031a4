"""Losses of a training that was hit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.faulting.notes import BATCH, Batch, Notes, losses


def line(time: float, before: int, rank: int = 0, event: str = "batch") -> str:
    return json.dumps({"event": event, "time": time, "before": before, "size": 2, "pid": 7, "rank": rank}) + "\n"


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    assert list(notes.batches()) == []
    path = tmp_path / "notes-n1-7.jsonl"
    path.write_text(line(1.0, 0) + line(1.0, 0, rank=1) + line(1.1, 0, event="start") + line(1.2, 16)[:20])
    assert [batch.time for batch in notes.batches()] == [1.0]
    (tmp_path / "notes-n2-8.jsonl").write_text(line(1.1, 8))
    path.write_text(path.read_text()[:-20] + line(1.2, 16))
    assert list(notes.batches()) == [Batch(1.0, 0, 2, 7), Batch(1.1, 8, 2, 7), Batch(1.2, 16, 2, 7)]


def test_batches_that_are_done_again_are_lost() -> None:
    step = 2 * BATCH
    done = [Batch(1.0, 0, 2, 7), Batch(1.1, step, 2, 7), Batch(1.2, 2 * step, 2, 7), Batch(2.2, step, 2, 8)]
    found = losses(done, since=1.15)
    assert found.batches == 2
    assert found.pause == pytest.approx(1.0)


def test_what_was_before_the_fault_does_not_count() -> None:
    done = [Batch(1.0, 0, 2, 7), Batch(3.0, 0, 2, 7), Batch(3.1, 16, 2, 7), Batch(3.2, 32, 2, 7)]
    found = losses(done, since=3.05)
    assert found.batches == 0
    assert found.pause == pytest.approx(0.1)
    assert losses([], since=1.0).pause == 0
