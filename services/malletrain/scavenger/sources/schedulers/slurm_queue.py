"""Slurm's queue with its burst-buffer requests, and how many nodes are free. Pure.

A job's burst-buffer directives are text of its user's, of several lines. Each begins with `#`, so that none can be
taken for another job.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.burst_buffers import BufferRequest, parse_directives
from malletrain.scavenger.sources.schedulers.slurm_text import (
    NOTHING,
    USABLE_STATES,
    lines_of,
    may_be_state,
    state_of,
    time_of,
)

QUEUE_FORMAT = ",".join(
    (
        *(f"{name}:0|" for name in ("JobArrayID", "StateCompact", "Partition", "PriorityLong", "SubmitTime")),
        *(f"{name}:0|" for name in ("TimeLimit", "NumNodes", "Reason")),
        "BurstBuffer:0",
    )
)
"""For `squeue -h -r --noconvert -O`. With size 0 fields are neither cut nor padded."""
NODES_FORMAT = "%R|%T|%N"
"""For `sinfo -h -o`."""
WAITING = "PD"
"""State of waiting jobs."""

_ROW = re.compile(
    r"(?P<job>\d[\d_+]*)\|(?P<state>[A-Z]{1,3})\|(?P<partitions>[^|\s]*)\|(?P<priority>\d{1,20})\|(?P<submit>[^|\s]*)"
    r"\|(?P<limit>[^|\s]*)\|(?P<nodes>\d{1,9})\|(?P<reason>.*?)\|(?P<buffer>#.*|\(null\)|)"
)
_LIMIT = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})")
_NO_LIMIT = re.compile(r"[A-Za-z_/]*")
_EXPECTED_ROW = "JOB|STATE|PARTITION|PRIORITY|SUBMITTED|LIMIT|NODES|REASON|BURST BUFFER"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job in Slurm's queue.

    Attributes:
        job: Its identifier, e.g. 17, 17_3 (a task of an array) or 17+1 (a part of a heterogeneous job).
        state: Its state in short, e.g. PD or R.
        partitions: Where it may run.
        priority: Slurm's priority; the highest is served first.
        submit_s: When it was submitted, in seconds since the epoch.
        limit_s: Its time limit in seconds; None: it has none.
        nodes: How many nodes it wants, or has.
        reason: Why it waits, in Slurm's words.
        requests: What burst buffer it asks for; None: that can't be read.
    """

    job: str
    state: str
    partitions: tuple[str, ...]
    priority: int
    submit_s: float
    limit_s: float | None
    nodes: int
    reason: str
    requests: tuple[BufferRequest, ...] | None = ()


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Nodes of the chosen partitions, each counted once.

    Attributes:
        total: All of them.
        free: Those on which nothing runs and which may be used at once.
    """

    total: int
    free: int


def parse_queue(text: str, *, skip_unreadable: bool = False) -> tuple[QueuedJob, ...]:
    """The answer to `squeue -h -r --noconvert -O QUEUE_FORMAT`, in its order, times in UTC.

    Args:
        text: What was printed.
        skip_unreadable: Whether a job whose burst-buffer request can't be read gets None as its requests.

    Raises:
        SourceError: the text has another form. Names the line.
    """
    rows: list[tuple[int, re.Match[str], list[str]]] = []
    try:
        lines_of(text)
    except UnreadableError as error:
        raise SourceError(f"squeue, last line: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if line.startswith("#") and rows:
            rows[-1][2].append(line)
            continue
        match = _ROW.fullmatch(line)
        if not match:
            raise SourceError(f"squeue, line {number}: {UnreadableError(_EXPECTED_ROW, line)}")
        buffer = match["buffer"]
        rows.append((number, match, [] if buffer in NOTHING else [buffer]))
    return tuple(_job(number, match, lines, skip_unreadable) for number, match, lines in rows)


def _job(number: int, row: re.Match[str], directives: list[str], skip_unreadable: bool) -> QueuedJob:
    requests: tuple[BufferRequest, ...] | None
    try:
        submit_s, limit_s = time_of(row["submit"]), _limit_s(row["limit"])
        if int(row["nodes"]) < 1:
            raise UnreadableError("at least 1 node", row["nodes"])
    except UnreadableError as error:
        raise SourceError(f"squeue, line {number}: job {row['job']}: {error}") from error
    try:
        requests = parse_directives(directives)
    except UnreadableError as error:
        if not skip_unreadable:
            raise SourceError(
                f"squeue, line {number}: burst buffer of job {row['job']}: {error}; --skip-unreadable leaves it out"
            ) from error
        requests = None
    return QueuedJob(
        row["job"],
        row["state"],
        tuple(row["partitions"].split(",")),
        int(row["priority"]),
        submit_s,
        limit_s,
        int(row["nodes"]),
        row["reason"],
        requests,
    )


def parse_node_counts(text: str, partitions: Collection[str] = ()) -> NodeCounts:
    """The answer to `sinfo -h -o '%R|%T|%N'`. A node that is also named with another state is not free.

    Args:
        text: What was printed.
        partitions: Only these; none: all.

    Raises:
        SourceError: the text has another form; names the line. Or there is no node.
        InvalidInputError: a partition is not in the answer.
    """
    idle: set[str] = set()
    known: set[str] = set()
    busy: set[str] = set()
    seen: set[str] = set()
    strange = ""
    try:
        lines_of(text)
    except UnreadableError as error:
        raise SourceError(f"sinfo, last line: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            partition, state, names = state_of(line, with_partition=True)
            if not partition:
                raise UnreadableError("PARTITION|STATE|NODES", line)
        except UnreadableError as error:
            raise SourceError(f"sinfo, line {number}: {error}") from error
        if not may_be_state(state):
            strange = strange or f"sinfo, line {number}: {UnreadableError('the state of a node', line)}"
        seen.add(partition)
        if not partitions or partition in partitions:
            known.update(names)
            (idle if state in USABLE_STATES else busy).update(names)
    for partition in partitions:
        if partition not in seen:
            raise InvalidInputError("--partition", f"one of {', '.join(sorted(seen)) or 'none'}", partition)
    if not known:
        raise SourceError("sinfo: expected at least one node, got none")
    if strange and not idle:
        raise SourceError(strange)
    return NodeCounts(len(known), len(idle - busy))


def _limit_s(text: str) -> float | None:
    """Seconds of `1-00:00:00`, `2:00:00` or `30:00`; None of UNLIMITED and other words."""
    match = _LIMIT.fullmatch(text)
    if not match:
        if not _NO_LIMIT.fullmatch(text):
            raise UnreadableError("a time limit such as 1-00:00:00", text)
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
