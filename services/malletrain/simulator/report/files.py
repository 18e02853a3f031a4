"""A replay in files: a row per decision and a row per job, as Parquet, and the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow
from pyarrow import parquet

from malletrain.simulator.replay.evaluation import Evaluated
from malletrain.simulator.replay.records import Columns, JobRecord

EVENTS, JOBS, METRICS = "events.parquet", "jobs.parquet", "metrics.json"


def write_tables(evaluated: Evaluated, folder: Path) -> list[Path]:
    """Write the tables of a replay into a folder that exists; the same replay gives the same bytes.

    Raises:
        OSError: a file can't be written.
    """
    played = evaluated.played
    parquet.write_table(decision_table(played.decisions), folder / EVENTS)
    parquet.write_table(job_table(played.jobs), folder / JOBS)
    (folder / METRICS).write_text(json.dumps(asdict(evaluated.metrics), indent=2) + "\n", encoding="utf-8")
    return [folder / EVENTS, folder / JOBS, folder / METRICS]


def decision_table(columns: Columns) -> pyarrow.Table:
    """One row per decision; columns as in `Decision`."""
    return pyarrow.table(dict(columns))


def job_table(jobs: tuple[JobRecord, ...]) -> pyarrow.Table:
    """One row per job; columns as in `JobRecord`."""
    rows: Mapping[str, list[object]] = {
        field.name: [getattr(job, field.name) for job in jobs] for field in fields(JobRecord)
    }
    return pyarrow.table(rows)
