"""Logs in the Standard Workload Format: what is read, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.idle import idle_trace_of
from malletrain.simulator.batch.swf import parse_log, read_log
from malletrain.simulator.batch.workload import Skipped, read_workload, workload_of
from malletrain.simulator.traces.row_counts import RowCounts
from tests.simulator.batch.workloads import swf_line, swf_text


def write(folder: Path, *lines: str, **header: object) -> Path:
    path = folder / "site.swf"
    path.write_text(swf_text(lines, **header))
    return path


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("log.swf", content)
    return out.getvalue()


def test_header_and_fields() -> None:
    text = """\
; Version: 2.2
; Installation: Universit\xe9 de Li\xe8ge
; MaxNodes: 128 (plus 4 for logins)
;MaxProcs:1024
; UnixStartTime: 820454400
; Note: MaxNodes: 7

    1  0  12 3600.5 16 3500 -1 32 7200 -1 1 4 2 -1 1 -1 -1 -1
"""
    log = parse_log(text.encode("latin-1").splitlines(keepends=True), "x.swf")
    assert (log.max_nodes, log.max_processors, log.unix_start_s) == (128, 1024, 820454400)
    (record,) = log.records
    assert (record.line, record.number, record.submit_s, record.run_s) == (8, 1, 0.0, 3600.5)
    assert (record.allocated, record.requested, record.requested_s, record.status) == (16, 32, 7200.0, 1)


def test_a_start_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"x.swf:1: UnixStartTime: expected seconds since the epoch"):
        parse_log(swf_text([swf_line(1)], UnixStartTime=10**12).encode().splitlines(), "x.swf")


def test_gzip_is_read_like_plain_text(tmp_path: Path) -> None:
    plain = write(tmp_path, swf_line(1), swf_line(2, 5), MaxNodes=4)
    packed = tmp_path / "packed.swf"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_log(packed).records == read_log(plain).records


def test_a_log_that_is_cut_off_in_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.swf.gz"
    path.write_bytes(gzip.compress(swf_text(swf_line(i, i) for i in range(1000)).encode())[:-200])
    with pytest.raises(InvalidInputError, match=r"cut.swf.gz: expected a complete compressed file"):
        read_log(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none.swf: expected a readable file"):
        read_log(tmp_path / "none.swf")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello world", ":3: expected 18 fields (this line has 2), got 'hello world'"),
        (swf_line(2) + " 7", ":3: expected 18 fields (this line has 19)"),
        (swf_line(2, run="60s"), ":3: run time: expected a number (-1 where unknown), got '60s'"),
        (swf_line(2, submit="nan"), ":3: submit time: expected a number"),
        (swf_line(2, run="inf"), ":3: run time: expected a number"),
        (swf_line(2, submit="1_000"), ":3: submit time: expected a number"),
        (swf_line(2, submit=-1), ":3: submit time: expected seconds, at least 0, got '-1'"),
        (swf_line(2, run="1e30"), ":3: run time: expected seconds, at most"),
        (swf_line(2, requested="2.5"), ":3: requested processors: expected a whole number"),
        (swf_line(2, allocated="1e15"), ":3: allocated processors: expected at most"),
        ("\x00\xff\xfe", ":3: expected 18 fields (this line has 1)"),
    ],
)
def test_garbage_is_refused_with_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, swf_line(1), line, MaxNodes=4)
    with pytest.raises(InvalidInputError, match=re.escape(f"{path}{message}")):
        read_log(path)


def test_requests_count_and_what_is_unknown_falls_back(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        swf_line(1, run=60, allocated=3, requested=2, requested_time=90),
        swf_line(2, run=60, allocated=3),
        swf_line(3, run=60, allocated=3, requested=0, requested_time=0),
        MaxNodes=4,
    )
    jobs = read_workload(path).jobs
    assert [(job.nodes, job.run_s, job.estimate_s) for job in jobs] == [(2, 60, 90), (3, 60, 60), (3, 60, 60)]


def test_what_did_not_run_is_counted_by_reason(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        swf_line(1),
        swf_line(2, run=0, status=5),
        swf_line(3, run=-1, status=5),
        swf_line(4, run=30, status=5),
        swf_line(5, run=-1),
        swf_line(6, run=0),
        swf_line(7, allocated=-1),
        swf_line(8, status=2),
        swf_line(8, status=3),
        swf_line(9, allocated=5),
        MaxNodes=4,
    )
    workload = read_workload(path, skip_too_large=True)
    assert [job.number for job in workload.jobs] == [1, 4]
    assert workload.skipped == Skipped(cancelled=2, partial=2, without_run_time=2, without_processors=1, too_large=1)


def test_a_job_larger_than_the_machine_is_refused_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, swf_line(1), swf_line(2, requested=9), MaxNodes=4)
    with pytest.raises(InvalidInputError, match=r"site.swf:3: requested processors: expected at most 4 nodes.*, got 9"):
        read_workload(path)


@pytest.mark.parametrize(
    ("header", "nodes", "per_node", "machine", "job_nodes"),
    [
        ({"MaxNodes": 16, "MaxProcs": 64}, None, None, 16, 3),
        ({"MaxNodes": 16, "MaxProcs": 64}, None, 2, 16, 5),
        ({"MaxNodes": 16}, None, None, 16, 10),
        ({"MaxProcs": 30}, None, 4, 8, 3),
        ({"MaxProcs": 30}, None, None, 30, 10),
        ({"MaxNodes": -1, "MaxProcs": 30}, None, None, 30, 10),
        ({"MaxNodes": 16, "MaxProcs": 64}, 5, None, 5, 3),
        ({}, 12, None, 12, 10),
    ],
)
def test_size_of_the_machine(
    header: dict[str, int], nodes: int | None, per_node: int | None, machine: int, job_nodes: int
) -> None:
    log = parse_log(swf_text([swf_line(1, requested=10)], **header).encode().splitlines(), "x.swf")
    workload = workload_of(log, nodes=nodes, processors_per_node=per_node)
    assert (workload.nodes, workload.jobs[0].nodes) == (machine, job_nodes)


def test_without_a_header_the_machine_must_be_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"nodes: expected the machine's size, as .*site.swf has no MaxNodes"):
        idle_trace_of(write(tmp_path, swf_line(1)))


def test_a_log_in_which_nothing_ran_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"site.swf: expected at least one job that ran, among 1 lines"):
        read_workload(write(tmp_path, swf_line(1, run=-1), MaxNodes=4))


@pytest.mark.parametrize("name", ["nodes", "processors_per_node"])
def test_a_machine_of_nothing_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, swf_line(1), MaxNodes=4)
    with pytest.raises(InvalidInputError, match=f"{name}: expected at least 1, got 0"):
        read_workload(path, nodes=0 if name == "nodes" else None, processors_per_node=0 if name != "nodes" else None)


def test_jobs_out_of_order_are_sorted_by_submission(tmp_path: Path) -> None:
    jobs = read_workload(write(tmp_path, swf_line(1, 9), swf_line(2, 3), swf_line(3, 9), MaxNodes=4)).jobs
    assert [job.number for job in jobs] == [2, 1, 3]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress, zipped])
def test_compressed_whatever_its_name_is(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(swf_text([swf_line(1), swf_line(2)]).encode()))
    assert [record.number for record in read_log(path).records] == [1, 2]


def test_fields_beyond_those_of_the_standard_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "metacentrum.swf"
    path.write_text(swf_text([swf_line(1) + " x86_64:linux 2 1:ppn=8", swf_line(2)]))
    plain = tmp_path / "plain.swf"
    plain.write_text(swf_text([swf_line(1), swf_line(2)]))
    assert read_log(path).records == read_log(plain).records


def test_lines_that_can_not_be_used_are_counted_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "odd.swf"
    path.write_text(swf_text([*(swf_line(number) for number in range(1, 200)), "garbage", "1 2 3"]))
    counts = RowCounts()
    assert len(read_log(path, counts).records) == 199
    assert counts.skipped_rows == 2
    path.write_text(swf_text([*(swf_line(number) for number in range(1, 100)), "garbage", "1 2 3"]))
    with pytest.raises(
        InvalidInputError, match=r"odd\.swf:10\d: expected at most 1\.00% of a log to be skipped, not 2"
    ):
        read_log(path, RowCounts())
