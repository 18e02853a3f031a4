"""Results of a replay: one row per decision, one row per job."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.replay.arrivals import QueueEmpty
from malletrain.simulator.replay.running_job import RunningJob


class Decision(NamedTuple):
    """One row: an event and the decision that followed.

    Attributes:
        time_s: When, in seconds.
        node_event: Whether nodes joined or left.
        joined: Nodes that joined.
        left: Nodes that left.
        admitted: Jobs that were admitted.
        ended: Jobs that ended.
        preempted: Jobs that lost nodes to the main scheduler.
        rescaled: Jobs whose scale the decision changed.
        pool: Idle nodes after the event, in use or not.
        used: Nodes that jobs hold after the decision.
        active: Admitted jobs.
        running: Jobs that hold nodes.
        rate: Samples/s of all jobs when none of them stalls.
        preemption_samples: Samples lost at once to preemption.
        invested_samples: Cost of the decision's rescales in samples.
        samples_before: Samples processed by all jobs up to now, net, before the costs of this row.
        samples: The same after these costs.
    """

    time_s: float
    node_event: bool
    joined: int
    left: int
    admitted: int
    ended: int
    preempted: int
    rescaled: int
    pool: int
    used: int
    active: int
    running: int
    rate: float
    preemption_samples: float
    invested_samples: float
    samples_before: float
    samples: float


Columns = Mapping[str, NDArray[Any]]


_STORED_AS = {bool: "b", int: "q", float: "d"}
_COLUMN_TYPES = {bool: np.bool_, int: np.int64, float: np.float64}
_FIELD_TYPES: tuple[type, ...] = tuple(get_type_hints(Decision).values())


class Decisions:
    """Collects rows, of about 130 bytes each: a year of a large machine has millions."""

    def __init__(self) -> None:
        self._columns: tuple[array[Any], ...] = tuple(array(_STORED_AS[kind]) for kind in _FIELD_TYPES)

    def add(self, row: Decision) -> None:
        """Add the newest row."""
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def columns(self) -> Columns:
        """All rows, by column. No row can be added afterwards."""
        return {
            name: np.frombuffer(column, dtype=_COLUMN_TYPES[kind])
            for name, column, kind in zip(Decision._fields, self._columns, _FIELD_TYPES, strict=True)
        }


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job that was admitted.

    Attributes:
        job: Identifier.
        model: Name of its model.
        submit_s: When it was submitted, in seconds.
        admitted_s: When it was admitted.
        started_s: When it first had nodes; None if it never did.
        ended_s: When it was done; None if it was not.
        samples: Samples processed, net.
        unit: Value of a sample in the metric.
        node_seconds: Node-seconds that it held.
        preemptions: Events in which it lost nodes to the main scheduler.
        rescales: Decisions that changed its scale.
        preemption_samples: Samples that preemption cost.
        rescale_samples: Samples that rescaling cost.
        owner: Name of the user who submitted it.
    """

    job: str
    model: str
    submit_s: float
    admitted_s: float
    started_s: float | None
    ended_s: float | None
    samples: float
    unit: float
    node_seconds: float
    preemptions: int
    rescales: int
    preemption_samples: float
    rescale_samples: float
    owner: str = ""


@dataclass(frozen=True)
class ReplayResult:
    """A whole replay.

    Attributes:
        decisions: Columns of `Decision`.
        jobs: The jobs that were admitted.
        node_events: Number of node events.
        queue_empty: From when on there was less work than there were places; None: there was work until the end.
    """

    decisions: Columns
    jobs: tuple[JobRecord, ...]
    node_events: int
    queue_empty: QueueEmpty | None = None


def job_record(run: RunningJob) -> JobRecord:
    """The record of a job in its present state."""
    return JobRecord(
        job=run.job.id,
        model=run.job.model,
        submit_s=run.job.submit_s,
        admitted_s=run.admitted_s,
        started_s=run.started_s,
        ended_s=run.ended_s,
        samples=run.done,
        unit=unit_of(run),
        node_seconds=run.node_seconds,
        preemptions=run.preemptions,
        rescales=run.rescales,
        preemption_samples=run.preemption_samples,
        rescale_samples=run.rescale_samples,
        owner=run.job.owner,
    )


def work_ended_s(result: ReplayResult) -> float | None:
    """When the last of all jobs was done, in seconds; None: there was work until the end."""
    ends = [job.ended_s for job in result.jobs if job.ended_s is not None]
    return max(ends) if result.queue_empty is not None and ends and len(ends) == len(result.jobs) else None


def unit_of(run: RunningJob) -> float:
    """Value of a sample of a job in the metric."""
    return run.unit


def outcome_so_far(ended: Iterable[JobRecord], running: Iterable[RunningJob], now_s: float) -> float:
    """Samples processed up to `now_s` by jobs that are done and by those that are not, each weighted by its unit."""
    done = sum(job.samples * job.unit for job in ended)
    return done + sum(run.done_at(now_s) * unit_of(run) for run in running)
