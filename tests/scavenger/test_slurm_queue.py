from __future__ import annotations

from datetime import UTC, datetime

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.burst_buffers import BufferRequest
from malletrain.scavenger.sources.schedulers.slurm_queue import NodeCounts, parse_node_counts, parse_queue

# After squeue(1): `-h -r --noconvert -O QUEUE_FORMAT`.
ROW = "17|PD|main|4294901750|2026-11-22T08:00:00|1-02:00:00|80|Resources|"


def test_a_job() -> None:
    (job,) = parse_queue(f"{ROW}#DW jobdw capacity=1GiB\n#DW stage_in source=/a|b\n\n")
    assert (job.job, job.state, job.partitions, job.nodes, job.reason) == ("17", "PD", ("main",), 80, "Resources")
    assert job.submit_s == datetime(2026, 11, 22, 8, tzinfo=UTC).timestamp()
    assert job.limit_s == 26 * 3600
    assert job.requests == (BufferRequest(2**30),)


@pytest.mark.parametrize(
    ("limit", "seconds"), [("30:00", 1800), ("2:00:00", 7200), ("UNLIMITED", None), ("NOT_SET", None)]
)
def test_time_limits(limit: str, seconds: float | None) -> None:
    (job,) = parse_queue(ROW.replace("1-02:00:00", limit) + "(null)\n")
    assert job.limit_s == seconds


@pytest.mark.parametrize("name", ["17_3", "17+1"])
def test_tasks_and_parts(name: str) -> None:
    (job,) = parse_queue(ROW.replace("17|", f"{name}|", 1) + "\n")
    assert (job.job, job.requests) == (name, ())


def test_an_empty_queue() -> None:
    assert parse_queue("") == ()


def test_directives_of_a_user_are_never_a_job() -> None:
    (job,) = parse_queue(f"{ROW}#DW stage_in source=/a|#b\n#18|PD|main|1|2026-11-22T08:00:00|1:00|1|None|(null)\n")
    assert (job.reason, job.requests) == ("Resources", ())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (ROW, "squeue, last line: expected an answer that ends with a line break"),
        ("#DW jobdw capacity=1GiB\n", "squeue, line 1: expected JOB"),
        (f"{ROW}\nsomething else\n", "squeue, line 2: expected JOB"),
        (ROW.replace("|80|", "|-80|") + "\n", "squeue, line 1: expected JOB"),
        (ROW.replace("|80|", "|1.5K|") + "\n", "squeue, line 1: expected JOB"),
        (ROW.replace("|80|", "|0|") + "\n", "squeue, line 1: job 17: expected at least 1 node"),
        (ROW.replace("2026-11-22T08:00:00", "N/A") + "\n", "squeue, line 1: job 17: expected a time"),
        (ROW.replace("1-02:00:00", "1-02") + "\n", "squeue, line 1: job 17: expected a time limit"),
        (f"{ROW}#DW jobdw capacity=1.5TB\n", "squeue, line 1: burst buffer of job 17: expected a whole amount"),
        (f"{ROW}#DW jobdw capacity=-5GB\n", "burst buffer of job 17.*'-5GB'; --skip-unreadable"),
        (f"{ROW}\n{ROW}#DW jobdw capacity=2N\n", "squeue, line 2: burst buffer of job 17"),
    ],
)
def test_strange_answers_name_the_line(text: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        parse_queue(text)


def test_an_unreadable_request_may_be_skipped() -> None:
    first, second = parse_queue(f"{ROW}#DW jobdw capacity=1.5TB\n{ROW}\n", skip_unreadable=True)
    assert (first.requests, second.requests) == (None, ())


NODES = "main|idle|n[1-6]\nmain|planned|n7\nmain|draining|n8\ndebug|idle|n1,d1\ndebug|allocated|n2\nempty|n/a|\n"


def test_nodes_are_counted_once() -> None:
    assert parse_node_counts(NODES) == NodeCounts(total=9, free=7)
    assert parse_node_counts(NODES, ["main"]) == NodeCounts(total=8, free=7)
    assert parse_node_counts(NODES, ["debug"]) == NodeCounts(total=3, free=2)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (NODES[:-1], "sinfo, last line"),
        ("main|idle|n[1-6]\nidle n7\n", "sinfo, line 2: expected PARTITION"),
        ("main|idle|n[6-1]\n", "sinfo, line 1: expected an ascending range"),
        ("main|17|n1\n", "sinfo, line 1: expected the state of a node"),
        ("", "at least one node"),
    ],
)
def test_strange_nodes_name_the_line(text: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        parse_node_counts(text)


def test_a_node_in_an_unknown_state_is_not_free() -> None:
    assert parse_node_counts(f"{NODES}main|17|n1\nmain|?|n9\n") == NodeCounts(total=10, free=6)


def test_an_unknown_partition() -> None:
    with pytest.raises(InvalidInputError, match="--partition: expected one of debug, empty, main, got 'gpu'"):
        parse_node_counts(NODES, ["gpu"])
