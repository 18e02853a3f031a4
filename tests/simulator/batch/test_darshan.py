"""What `darshan-parser` prints becomes requests of burst buffer."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from malletrain.cli.simulate.batch import batch
from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.darshan import MovedData, parse_darshan, read_darshan, with_requests
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload
from malletrain.simulator.batch.workload_files import read_jobs

app = typer.Typer()
app.command()(batch)
HEAD = "# darshan log version: 3.41\n# exe: ./a.out\n# uid: 6729\n# jobid: {job}\n# nprocs: 16\n# run time: 12.5\n"
TOTALS = "total_POSIX_OPENS: 16\ntotal_POSIX_BYTES_READ: 1500000000\ntotal_POSIX_BYTES_WRITTEN: 500000001\n"
ROW = "{module}\t-1\t14734109647742566553\t{counter}\t{value}\t/path/file\t{mount}\t{kind}\n"


def total(job: int, text: str = TOTALS) -> str:
    return HEAD.format(job=job) + text


def row(counter: str, value: int, kind: str = "lustre", mount: str = "/scratch") -> str:
    return ROW.format(module=counter.split("_")[0], counter=counter, value=value, mount=mount, kind=kind)


def test_totals_and_records_say_what_a_job_moved() -> None:
    assert parse_darshan(total(7).splitlines(), "x") == MovedData(7, 2_000_000_001)
    more = total(7, TOTALS + "total_STDIO_BYTES_WRITTEN: 9\ntotal_MPIIO_BYTES_WRITTEN: 500000001\n")
    assert parse_darshan(more.splitlines(), "x").moved_bytes == 2_000_000_010, "MPI-IO writes by POSIX"
    records = row("POSIX_BYTES_READ", 5) + row("POSIX_OPENS", 3) + row("STDIO_BYTES_WRITTEN", 4)
    records += row("POSIX_BYTES_WRITTEN", 100, "tmpfs", "/dev/shm") + row("POSIX_BYTES_WRITTEN", -1)
    assert parse_darshan(total(7, records).splitlines(), "x") == MovedData(7, 9), "nothing of what is in memory"


@pytest.mark.parametrize(
    "text",
    [
        *("", "job,nodes\n1,2\n", HEAD.format(job=7), TOTALS),
        total(7, "total_POSIX_BYTES_READ: many\n"),
        total(7, "total_POSIX_BYTES_READ: -5\n"),
        total(7, f"total_POSIX_BYTES_READ: {10**22}\n"),
        total(7, "x" * 100_000),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="x"):
        parse_darshan(text.splitlines(keepends=True), "x")


def test_logs_of_a_job_are_added_up(tmp_path: Path) -> None:
    for name, job in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / f"{name}.txt").write_text(total(job), encoding="utf-8")
    (tmp_path / "other.darshan").write_bytes(b"\0")
    assert read_darshan(tmp_path) == {1: 4_000_000_002, 2: 2_000_000_001}
    assert read_darshan(tmp_path / "c.txt") == {2: 2_000_000_001}
    with pytest.raises(InvalidInputError, match="darshan-parser"):
        read_darshan(tmp_path / "other.darshan")


def test_requests_are_whole_gb_from_one_gb_on() -> None:
    jobs = tuple(BatchJob(number, 0.0, 1, 5.0, 5.0, burst_buffer_gb=9 * (number == 4)) for number in range(1, 6))
    workload = BatchWorkload(jobs, 4, resources=MachineResources(4, 100))
    moved = {1: 10**9, 2: 10**9 + 1, 3: 10**9 - 1, 5: 10**12, 77: 5}
    with pytest.raises(InvalidInputError, match="job 5"):
        with_requests(workload, moved)
    found = with_requests(workload, moved, skip_too_large=True)
    assert [(job.number, job.burst_buffer_gb) for job in found.workload.jobs] == [(1, 1), (2, 2), (3, 0), (4, 9)]
    assert (found.asking, found.small, found.unknown, found.too_large) == (2, 1, 1, 1)


def test_the_command_writes_a_table_with_the_requests(tmp_path: Path) -> None:
    table, folder = tmp_path / "jobs.csv", tmp_path / "darshan"
    folder.mkdir()
    (folder / "1.txt").write_text(total(1), encoding="utf-8")
    table.write_text("job,submit_s,nodes,run_s,estimate_s\n1,0,1,5,5\n2,0,1,5,5\n", encoding="utf-8")
    words = ["table", "--workload", str(table), "--nodes", "4", "--burst-buffer", "100"]
    result = CliRunner().invoke(app, [*words, "--darshan", str(folder), "--to", str(tmp_path / "out.csv")])
    assert result.exit_code == 0, result.output
    assert [job.burst_buffer_gb for job in read_jobs(tmp_path / "out.csv")] == [3, 0]
