"""What readers of logs find: runs of jobs, rows that are none, and the runs of a whole log as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.columns import Seconds
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


MAX_NODES = 1_000_000
"""More nodes than any machine has."""
MAX_HELD_NODES = 50_000_000
"""Nodes of all runs together; some 40 bytes of memory each."""
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class RunTable:
    """Runs, and the nodes that each held.

    Attributes:
        names: Nodes, in the order in which they were named.
        from_s: First second of each run; shape (runs,).
        until_s: First second after its end; NaN if the log knows no end; shape (runs,).
        ran_on: Whether it still ran when the log was written; shape (runs,).
        key: Hash of job and first second, by which two rows of one run are known; 0 without a job; shape (runs,).
        file: Index of its file in `files`; shape (runs,).
        line: Its line; shape (runs,).
        files: Paths of the log's files, with what comes before the number of a line.
        node: A node in `names`; shape (held nodes,), run after run.
        run: The run that held it; shape (held nodes,), ascending.
    """

    names: tuple[str, ...]
    from_s: Seconds
    until_s: Seconds
    ran_on: NDArray[np.bool_]
    key: Indices
    file: NDArray[np.int32]
    line: Indices
    files: tuple[str, ...]
    node: NDArray[np.int32]
    run: NDArray[np.int32]

    @property
    def size(self) -> int:
        """Number of runs."""
        return int(self.from_s.size)

    def place(self, run: int) -> str:
        """`file:line` of a run, for errors."""
        return f"{self.files[self.file[run]]}{self.line[run]}"

    def with_ends(self, until_s: Seconds) -> RunTable:
        """The runs with other ends."""
        return replace(self, until_s=until_s)

    def without_runs(self, gone: NDArray[np.bool_]) -> RunTable:
        """The table without some runs; `gone` has the shape (runs,)."""
        staying = ~gone
        index = np.cumsum(staying) - 1
        held = staying[self.run]
        return replace(
            self,
            **{name: getattr(self, name)[staying] for name in ("from_s", "until_s", "ran_on", "key", "file", "line")},
            node=self.node[held],
            run=index[self.run[held]].astype(np.int32),
        )

    def without_runs_off_nodes(self) -> RunTable:
        """The table without the runs that hold no node of it."""
        return self.without_runs(np.bincount(self.run, minlength=self.size) == 0)

    def on_nodes(self, names: tuple[str, ...], position: Mapping[str, int]) -> RunTable:
        """The table with other nodes.

        Args:
            names: The new nodes.
            position: Index in `names` of each old name; those that lack are left out.
        """
        new = np.array([position.get(name, -1) for name in self.names], np.int32)
        node = new[self.node] if self.names else self.node
        held = node >= 0
        return replace(self, names=names, node=node[held], run=self.run[held])


def table_of(runs: Iterable[Run]) -> RunTable:
    """Runs as arrays.

    Raises:
        InvalidInputError: there are more nodes than any machine has.
    """
    positions: dict[str, int] = {}
    files: dict[str, int] = {}
    from_s, until_s = array("d"), array("d")
    key, line = array("q"), array("q")
    file, node, count, ran_on = array("i"), array("i"), array("i"), array("b")
    for run in runs:
        from_s.append(run.from_s)
        until_s.append(np.nan if run.until_s is None else run.until_s)
        ran_on.append(run.ran_on)
        key.append(hash((run.job, run.from_s)) if run.job else 0)
        file.append(files.setdefault(run.line.file + run.line.unit, len(files)))
        line.append(run.line.number)
        count.append(len(run.nodes))
        for name in run.nodes:
            index = positions.get(name)
            if index is None:
                index = positions[name] = len(positions)
            node.append(index)
        if len(positions) > MAX_NODES or len(node) > MAX_HELD_NODES:
            limit = f"at most {MAX_NODES} nodes, and {MAX_HELD_NODES} of all jobs together"
            raise InvalidInputError(run.line.place, limit)
    counts = np.frombuffer(count, np.int32) if count else np.empty(0, np.int32)
    return RunTable(
        tuple(positions),
        np.array(from_s, np.float64),
        np.array(until_s, np.float64),
        np.array(ran_on, np.bool_),
        np.array(key, np.int64),
        np.array(file, np.int32),
        np.array(line, np.int64),
        tuple(files),
        np.array(node, np.int32),
        np.repeat(np.arange(counts.size, dtype=np.int32), counts),
    )
