"""Writes a replay: decisions and jobs as Parquet, figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow
from pyarrow import parquet

from malletrain.common.files import write_atomically
from malletrain.simulator.replay.evaluation import Evaluation
from malletrain.simulator.replay.records import Columns, JobRecord

EVENTS, JOBS, METRICS = "events.parquet", "jobs.parquet", "metrics.json"


def write_tables(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write the tables of a replay into an existing folder. The same replay gives the same bytes.

    Raises:
        OSError: a file can't be written.
    """
    result = evaluation.result
    parquet.write_table(decision_table(result.decisions), folder / EVENTS)
    parquet.write_table(job_table(result.jobs), folder / JOBS)
    write_atomically(folder / METRICS, json.dumps(asdict(evaluation.metrics), indent=2) + "\n")
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
