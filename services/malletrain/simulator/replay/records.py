"""What a replay leaves behind: a row per decision and a row per job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.replay.running import Running


class Decision(NamedTuple):
    """One decision.

    Attributes:
        time_s: When, in seconds.
        node_event: Whether nodes joined or left.
        joined: Nodes that joined.
        left: Nodes that left.
        admitted: Jobs that were admitted.
        ended: Jobs that ended.
        preempted: Jobs that lost nodes to the main scheduler.
        rescaled: Jobs that the decision changed.
        pool: Idle nodes after the event, used or not.
        used: Nodes that jobs hold after the decision.
        active: Jobs that take part.
        running: Jobs that hold nodes.
        rate: Samples/s of all of them, once none stalls.
        preemption_samples: Lost at once to preemption.
        invested_samples: What the decision's rescales cost.
        samples_before: Samples processed by all jobs up to now, net, before the event cost anything.
        samples: The same after it.
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


class Decisions:
    """Collects decisions; some 150 bytes each."""

    def __init__(self) -> None:
        self._rows: list[Decision] = []

    def add(self, row: Decision) -> None:
        """Add the newest decision."""
        self._rows.append(row)

    def columns(self) -> Columns:
        """All of them, column by column."""
        columns = list(zip(*self._rows, strict=True)) or [()] * len(Decision._fields)
        return {name: np.asarray(column) for name, column in zip(Decision._fields, columns, strict=True)}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job that took part.

    Attributes:
        job: Identifier.
        model: What it trained.
        submit_s: When it was submitted, in seconds.
        admitted_s: When it was admitted.
        started_s: When it first had nodes; None if it never did.
        ended_s: When it was done; None if it was not.
        samples: Samples processed, net.
        unit: What a sample is worth in the metric.
        node_seconds: Node-seconds that it held.
        preemptions: Events in which it lost nodes to the main scheduler.
        rescales: Decisions that changed its scale.
        preemption_samples: Samples that preemption cost.
        rescale_samples: Samples that rescaling cost.
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


@dataclass(frozen=True)
class Played:
    """A whole replay: columns of `Decision`, the jobs that took part, and how many node events there were."""

    decisions: Columns
    jobs: tuple[JobRecord, ...]
    node_events: int


def job_record(run: Running) -> JobRecord:
    """The record of a job as it stands."""
    one = next(count for count, rate in enumerate(run.speeds) if rate > 0) if any(run.speeds) else 0
    unit = float(run.choices.held_rates[one] / run.speeds[one]) if one else 1.0
    return JobRecord(
        job=run.job.id,
        model=run.job.model,
        submit_s=run.job.submit_s,
        admitted_s=run.admitted_s,
        started_s=run.started_s,
        ended_s=run.ended_s,
        samples=run.done,
        unit=unit,
        node_seconds=run.node_seconds,
        preemptions=run.preemptions,
        rescales=run.rescales,
        preemption_samples=run.preemption_samples,
        rescale_samples=run.rescale_samples,
    )
