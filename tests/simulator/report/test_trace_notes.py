"""What the metadata of a trace says of how it was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from malletrain.scavenger.trace_files import read_metadata
from malletrain.simulator.report.trace_notes import MAX_SHOWN, TraceNotes, notes_of
from malletrain.simulator.traces.convert import convert_jobs

SACCT = """JobID|Start|End|NodeList|State
1|2026-01-05T08:00:00|2026-01-05T11:00:00|n[1-2]|COMPLETED
2|2026-01-35T12:00:00|2026-01-05T11:00:00|n1|COMPLETED
3|2026-01-05T11:30:00|2026-01-05T12:00:00|n[1-2]|COMPLETED
4|2026-01-05T13:00:00|2026-01-05T14:00:00|n[1-2]|COMPLETED
"""


def test_a_conversions_own_metadata_are_understood(tmp_path: Path) -> None:
    log = tmp_path / "jobs.txt"
    log.write_text(SACCT)
    found = convert_jobs("sacct", [log])
    notes = notes_of(json.loads(json.dumps({"source": "sacct", "conversion": found.metadata})))
    assert notes.counted
    assert notes.skipped_rows == 1
    assert notes.skipped_row_share == pytest.approx(0.25)
    assert any(text.startswith("window: 2026-01-05T11:00:00") for text in notes.assumptions)
    # Whose folder the log lay in is nobody else's business.
    assert str(tmp_path) not in repr(notes)


def test_generated_traces_are_no_logs(tmp_path: Path) -> None:
    assert not notes_of({"source": "sacct"}).drawn
    assert notes_of({"source": "generated like polaris, seed 0"}).drawn
    assert not notes_of(read_metadata(tmp_path / "none.csv")).drawn


@pytest.mark.parametrize(
    "made",
    [
        None,
        [],
        {"skipped": {"reason": 1}},
        {"skipped": [None, 3, {"reason": 7, "rows": 1}, {"reason": "x", "rows": "many"}, {"reason": "x", "rows": -1}]},
        {"notes": 5, "skipped_row_share": "half", "rows_used": True},
        {"skipped_row_share": 10**400, "rows_used": 10**400, "skipped": [{"reason": "x", "rows": 10**400}]},
        {"skipped_row_share": float("nan"), "skipped_node_hour_share": float("inf"), "assumed_of_rows": [1]},
    ],
)
def test_what_has_another_form_is_left_out(made: object) -> None:
    notes = notes_of({"conversion": made, "source": 3, "system": ["x"]})
    assert notes.sources == ()
    assert notes.skipped == ()
    assert notes.skipped_row_share == 0.0
    assert notes.assumptions == ()


def test_texts_and_lists_have_limits() -> None:
    made = {
        "skipped": [{"reason": "r" * 10_000, "rows": 1, "node_hours": None}] * 1000,
        "notes": ["a\x1b[31m\nb " * 10_000] * 1000,
    }
    notes = notes_of({"conversion": made, "source": "s" * 10**6})
    assert len(notes.skipped) == len(notes.assumptions) == MAX_SHOWN
    assert all(len(text) < 700 and "\x1b" not in text and "\n" not in text for text in notes.assumptions)
    assert len(notes.sources[0]) < 700
    assert notes.skipped[0].node_hours is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("first: /home/ada/logs/jobs.txt:17: End", "first: jobs.txt:17: End"),
        ("(~/a/b.csv)", "(b.csv)"),
        ("../x/y.csv", "y.csv"),
        ("the oldest, site/logs/jobs.txt:17): 3", "the oldest, jobs.txt:17): 3"),
        ("12.5 node-hours/day and and/or", "12.5 node-hours/day and and/or"),
        ("n[001-032]/2", "n[001-032]/2"),
    ],
)
def test_folders_of_files_are_left_out(text: str, shown: str) -> None:
    assert notes_of({"conversion": {"notes": [text]}}).assumptions == (shown,)


def test_without_metadata_nothing_is_claimed() -> None:
    assert notes_of({}) == TraceNotes()
    assert not notes_of({}).counted
