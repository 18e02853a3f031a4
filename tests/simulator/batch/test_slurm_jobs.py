"""A Slurm centre's own jobs as a workload of `malletrain batch`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from malletrain.cli.simulate.batch import batch
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.machine import MachineSpec
from malletrain.simulator.batch.workload_files import is_slurm, read_any_workload, read_slurm_workload

HEADER = "JobIDRaw|JobName|Submit|Start|End|Elapsed|Timelimit|NodeList|State|AllocTRES\n"
ROWS = """\
7|a|b|2026-01-05T08:00:00|2026-01-05T08:10:00|2026-01-05T09:10:00|01:00:00|02:00:00|n[1-2]|COMPLETED|cpu=64,node=2
7.batch|batch|2026-01-05T08:10:00|2026-01-05T08:10:00|2026-01-05T09:10:00|01:00:00||n1|COMPLETED|cpu=32,node=1
8|x|2026-01-05T07:00:00|2026-01-05T08:20:00|2026-01-05T09:20:00|01:00:00|UNLIMITED|n3|TIMEOUT|bb/datawarp=200G,node=1
9|x|2026-01-05T08:30:00|Unknown|Unknown|00:00:00|01:00:00|None assigned|PENDING|
10|x|2026-01-05T08:30:00|2026-01-05T08:30:00|Unknown|00:40:00|1-00:00:00|n4|RUNNING|node=1
"""
app = typer.Typer()
app.command()(batch)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.txt"
    path.write_text(HEADER + ROWS)
    return path


def test_jobs_that_ran_with_sizes_limits_and_submissions(log: Path) -> None:
    assert is_slurm(log)
    found = read_any_workload(log, spec=MachineSpec())
    assert found.nodes == 3
    assert [(job.number, job.submit_s, job.nodes, job.run_s, job.estimate_s) for job in found.jobs] == [
        (8, 0.0, 1, 3600.0, 3600.0),
        (7, 3600.0, 2, 3600.0, 7200.0),
    ]
    assert {job.burst_buffer_gb for job in found.jobs} == {0}
    machine = MachineSpec(nodes=5, burst_buffer_gb=1000)
    assert [job.burst_buffer_gb for job in read_slurm_workload(log, machine).jobs] == [200, 0]


def test_from_json(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    job = {
        "job_id": 7,
        "nodes": "n[1-2]",
        "state": {"current": ["COMPLETED"]},
        "time": {
            "submission": 1767600000, "start": 1767600600, "end": 1767604200, "elapsed": 3600,
            "limit": {"set": True, "infinite": False, "number": 120},
        },
        "tres": {
            "allocated": [{"type": "node", "name": "", "count": 2}, {"type": "bb", "name": "cray", "count": 200000}]
        },
    }  # fmt: skip
    path.write_text(json.dumps({"jobs": [job]}))
    (found,) = read_slurm_workload(path, MachineSpec(2, 1000)).jobs
    assert (found.nodes, found.submit_s, found.run_s, found.estimate_s) == (2, 0.0, 3600.0, 7200.0)
    assert found.burst_buffer_gb == 200


def test_the_command_writes_a_table_and_simulates_both_alike(log: Path, tmp_path: Path) -> None:
    table = tmp_path / "site.csv"
    done = CliRunner().invoke(app, ["table", "--workload", str(log), "--to", str(table)], catch_exceptions=False)
    assert f"wrote {table}: 2 jobs on 3 nodes" in done.stdout
    assert table.read_text().splitlines()[1:] == ["8,0,1,3600,3600,0,0", "7,3600,2,3600,7200,0,0"]
    answers = [json.loads(CliRunner().invoke(app, ["--workload", str(path), "--json"]).stdout) for path in (log, table)]
    assert answers[0] == answers[1]
    assert answers[0]["statistics"]["jobs"] == 2


def test_what_is_wrong_is_named(log: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:2: nodes: expected at most 1 nodes"):
        read_slurm_workload(log, MachineSpec(1))
    assert len(read_slurm_workload(log, MachineSpec(1), skip_too_large=True).jobs) == 1
    log.write_text(HEADER.replace("Submit", "Sent") + ROWS)
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:1: expected a header with Submit"):
        read_any_workload(log, spec=MachineSpec())
    log.write_text(HEADER)
    with pytest.raises(InvalidInputError, match="at least one job that ran"):
        read_any_workload(log, spec=MachineSpec())
    row = ROWS.splitlines()[0]
    log.write_text("\n".join((HEADER.strip(), row, *[row.replace("T09:10:00", "T09:99:00")] * 2)))
    with pytest.raises(
        InvalidInputError, match=r"jobs\.txt:3: expected at most 1\.00% of a log to be skipped, not 2 rows, 66"
    ):
        read_any_workload(log, spec=MachineSpec())
    swf = tmp_path / "log.swf"
    swf.write_text("; MaxNodes: 4\n1 0 0 100 2 -1 -1 2 100 -1 1 1 1 1 1 -1 -1 -1\n")
    assert not is_slurm(swf)
