"""What readers of logs find: runs of jobs, and rows that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.lines import Line


class Run(NamedTuple):
    """A period in which a job held nodes. A job that was requeued has several.

    Attributes:
        nodes: Names of the nodes, each once.
        from_s: First second, in seconds since 1970 in UTC or in the log's local time.
        until_s: First second after the end; None if the log knows no end.
        line: Where it is recorded.
        assumed: What the reader had to assume of its times or nodes, as a phrase for people that is the same for all
            rows of a kind ("an end before the start: taken as a short job"); empty if it assumed nothing.
        job: The job's identifier, by which two rows of one run are known; empty if there is none.
        ran_on: Whether it still ran when the log was written: an end that is the log's last time is then none.
        slots: Nodes, or slots on them, that it held, where the log knows no names.
    """

    nodes: tuple[str, ...]
    from_s: float
    until_s: float | None
    line: Line
    assumed: str = ""
    job: str = ""
    ran_on: bool = False
    slots: int = 0


class SkippedRow(NamedTuple):
    """A row that should tell of a run, but can't be used. With `--strict` it is an error.

    Attributes:
        reason: Why, as a phrase for people that is the same for all rows of a kind ("a time that is none").
        error: What is wrong with this row: its place, what was expected, and what was found.
        node_s: Node-seconds that it concerns; None if they are not known.
    """

    reason: str
    error: InvalidInputError
    node_s: float | None = None


class OtherRow(NamedTuple):
    """A row that tells of no run, as it should be: a step, a job that never started, a record of another kind.

    Attributes:
        reason: What it is, as a phrase for people that is the same for all rows of a kind ("steps of jobs").
    """

    reason: str


class Recorded(NamedTuple):
    """Says that the log has each start and each end of a job within a time, as one that is written when they happen.

    Attributes:
        from_s: First second, in seconds since 1970.
        until_s: The last.
    """

    from_s: float
    until_s: float


Row = Run | SkippedRow | OtherRow
Reader = Callable[[Iterable[Line], CalendarReader], Iterator[Row | Recorded]]
"""Reads the lines of one or more files, in the order of time.

A reader raises InvalidInputError only where no row of the file can be used, such as for a missing header. Everything
else is a `SkippedRow`.
"""
