"""From a schedule to the trace of its idle nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.running import schedule_of
from malletrain.simulator.batch.schedule import Schedule, node_names
from malletrain.simulator.batch.workload import read_workload
from malletrain.simulator.traces.row_counts import RowCounts

_Gap = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


class Window(StrEnum):
    """Which part of a schedule a trace covers: until the last submission, or until the last end."""

    SUBMITS = "submits"
    ALL = "all"


def idle_trace_of(
    path: Path,
    *,
    policy: str = "easy",
    nodes: int | None = None,
    window: Window = Window.SUBMITS,
    counts: RowCounts | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """The trace of idle nodes that a scheduler would leave with the jobs of an SWF file.

    Args:
        path: The log, plain or compressed.
        policy: `fcfs`, `easy` or `wfp`.
        nodes: Nodes of the machine; None: as the header says.
        window: End of the trace; it begins at the first submission.
        counts: Counts lines that can't be used; None: the first one is an error.
        progress: Called now and then with how many jobs have started, and how many there are.

    Raises:
        InvalidInputError: the file or an argument is not valid; the error names file and line, or the argument.
    """
    chosen = policy_named(policy)
    workload = read_workload(path, nodes=nodes, counts=counts)
    count = len(workload.jobs)
    started = None if progress is None else lambda done: progress(done, count)
    return idle_trace(schedule_of(workload, chosen, progress=started)[0], window=window)


def idle_trace(schedule: Schedule, *, window: Window = Window.SUBMITS, min_idle_s: float = 0.0) -> Trace:
    """The idle periods of each node.

    Second 0 of the trace is the first submission. After the last submission the machine drains: nodes are then idle
    only because the log is over. No fragment extends beyond the trace.

    Args:
        schedule: From `simulate`.
        window: End of the trace.
        min_idle_s: Shortest fragment in seconds; a debounce of that length would not see shorter ones.

    Raises:
        InvalidInputError: the window has no length, or min_idle_s is not valid.
    """
    if not 0 <= min_idle_s < math.inf:
        raise InvalidInputError("min_idle_s", "seconds, at least 0", min_idle_s)
    begin_s = schedule.first_submit_s
    end_s = schedule.last_submit_s if window is Window.SUBMITS else schedule.last_end_s
    if not end_s > begin_s:
        raise InvalidInputError("window", f"{Window.ALL}, as all jobs were submitted in the same second", str(window))
    gaps = list(_gaps(schedule, begin_s, end_s))
    node = np.concatenate([gap[0] for gap in gaps])
    idle_from = np.concatenate([gap[1] for gap in gaps]) - begin_s
    idle_until = np.concatenate([gap[2] for gap in gaps]) - begin_s
    # Also with a minimum of 0: a gap that is rounded to 0 is not a fragment.
    long_enough = (idle_until > idle_from) & (idle_until - idle_from >= min_idle_s)
    order = np.flatnonzero(long_enough)[np.lexsort((node[long_enough], idle_from[long_enough]))]
    names = node_names(schedule.nodes)
    columns = (node[order].tolist(), idle_from[order].tolist(), idle_until[order].tolist())
    fragments = tuple(Fragment(names[index], start, end) for index, start, end in zip(*columns, strict=True))
    return Trace(fragments, names, end_s - begin_s, origin=schedule.first_submit_at)


def _gaps(schedule: Schedule, begin_s: float, end_s: float) -> Iterator[_Gap]:
    """Arrays (nodes, idle from, idle until) of gaps that a start ends, then of those that the window ends."""
    free_from = np.full(schedule.nodes, begin_s)
    for run in schedule.runs:
        if run.start_s >= end_s:
            break
        for part in run.nodes:
            before = free_from[part.start : part.stop]
            idle = np.flatnonzero(before < run.start_s)
            if idle.size:
                yield idle + part.start, before[idle], np.full(idle.size, run.start_s)
            before[:] = run.end_s
    idle = np.flatnonzero(free_from < end_s)
    yield idle, free_from[idle], np.full(idle.size, end_s)
