"""The idle nodes that a schedule leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.batch.schedule import Schedule, node_names

_Gap = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


class Window(StrEnum):
    """Which part of a schedule a trace tells of; both begin at the first submission."""

    SUBMITS = "submits"
    ALL = "all"


def idle_trace(schedule: Schedule, *, window: Window = Window.SUBMITS, min_idle_s: float = 0.0) -> Trace:
    """The idle periods of each node.

    The trace's second 0 is the first submission. It ends with the last submission, or with the last end: between the
    two no new jobs come, the machine drains, and its nodes are idle only because the log is over. No fragment goes on
    beyond the trace.

    Args:
        schedule: From `simulate`.
        window: Where the trace ends.
        min_idle_s: Leave out fragments that are shorter, seconds; what a debounce of that length would not see.

    Raises:
        InvalidInputError: the window has no length, or min_idle_s is no number of seconds.
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
    # Kept even at a minimum of 0: a gap that rounds to nothing is no fragment.
    kept = (idle_until > idle_from) & (idle_until - idle_from >= min_idle_s)
    order = np.flatnonzero(kept)[np.lexsort((node[kept], idle_from[kept]))]
    names = node_names(schedule.nodes)
    columns = (node[order].tolist(), idle_from[order].tolist(), idle_until[order].tolist())
    found = tuple(Fragment(names[index], start, end) for index, start, end in zip(*columns, strict=True))
    return Trace(found, names, end_s - begin_s, origin=schedule.first_submit_at)


def _gaps(schedule: Schedule, begin_s: float, end_s: float) -> Iterator[_Gap]:
    """(nodes, idle from, idle until) within the window, of every start and of the window's end."""
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
