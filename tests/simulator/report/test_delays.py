"""Delays of main jobs: only what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.journal.record import Journal, RecordedJob
from malletrain.simulator.report.delays import REFERENCE, read_delay, release_delay
from tests.support.builders import job

ROOT = Path(__file__).parents[3]


def journal(*seconds: float) -> Journal:
    events = tuple(
        JobEvent(100.0 + place, "j000001", JobState.RUNNING, JobState.RUNNING, JobReason.CONFIRMED, "", (), took)
        for place, took in enumerate(seconds)
    )
    row = IdleRow(0.0, IdleRowKind.START, {}, frozenset())
    return Journal((row,), (RecordedJob(job(1, "n1"), events, None, None),))


def test_the_file_of_the_benchmark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "zero-impact.json"
    path.write_text(json.dumps({"main_jobs": 62, "start_delta_p99_s": 1.021, "reclaim_p99_s": 0.4}))
    found = read_delay(path)
    assert found.seconds == 1.021
    assert "62 main jobs" in found.source
    assert str(tmp_path) not in found.source


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "--delays: expected a file of benchmarks/zero_impact.py"),
        ("[1]", "a JSON object"),
        ("[" * 100_000, "--delays: expected a file of benchmarks/zero_impact.py"),
        ('{"main_jobs": 3}', "start_delta_p99_s: expected a number"),
        ('{"main_jobs": 3, "start_delta_p99_s": null}', "start_delta_p99_s: expected a number"),
        ('{"main_jobs": true, "start_delta_p99_s": 1}', "main_jobs: expected a number"),
        ('{"main_jobs": -3, "start_delta_p99_s": 1}', "main_jobs: expected a number"),
        (f'{{"main_jobs": 3, "start_delta_p99_s": {10**400}}}', "start_delta_p99_s: expected a number"),
        ('{"main_jobs": 3, "start_delta_p99_s": NaN}', "start_delta_p99_s: expected a number"),
    ],
)
def test_another_file_is_refused_by_its_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        read_delay(path)
    with pytest.raises(InvalidInputError, match="--delays"):
        read_delay(tmp_path / "nowhere.json")


def test_releases_of_an_installation_are_a_measurement() -> None:
    found = release_delay(journal(*([0.2] * 98), 0.5, 9.0), 0.0, 1000.0)
    assert found is not None
    assert found.seconds == 0.5
    assert "100 releases" in found.source
    assert release_delay(journal(0.0, 0.0), 0.0, 1000.0) is None
    assert release_delay(journal(0.2), 500.0, 1000.0) is None


def test_the_reference_says_what_the_document_says() -> None:
    document = (ROOT / "docs/zero-impact.md").read_text(encoding="utf-8")
    table = document[document.index("**On a machine to itself**") :]
    alone, with_us = (next(line for line in table.splitlines() if line.startswith(start)) for start in _ROWS)
    assert alone.split("|")[-2].strip() == re.search(r"up to ([0-9.]+) s", REFERENCE)[1]  # type: ignore[index]
    assert with_us.split("|")[-2].strip(" *") == re.search(r"at most ([0-9.]+) s", REFERENCE)[1]  # type: ignore[index]
    assert with_us.split("|")[2].strip() == re.search(r"([0-9]+) main jobs", REFERENCE)[1]  # type: ignore[index]


_ROWS = ("| **Slurm against itself**", "| **Placeholders**")
