"""The step of a logged value whose script gives none: the samples that the job had done by then. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from malletrain.monitor.machine.progress import NO_POSITION, ReportedBatch
from malletrain.monitor.training_metrics.history import LoggedValue


def with_steps(
    values: Iterable[LoggedValue], batches: Sequence[ReportedBatch], samples: int
) -> tuple[LoggedValue, ...]:
    """The values, each with a step.

    Args:
        values: What a job's reporter has sent.
        batches: What the same reporter has sent of its batches together with that, oldest first.
        samples: Samples that the job has done, these batches included.
    """
    times = [at for batch in batches for at in batch.records.unix_seconds]
    done = _samples_after(batches, samples)
    return tuple(
        value if value.step is not None else value._replace(step=done[bisect_right(times, value.unix_seconds)])
        for value in values
    )


def _samples_after(batches: Sequence[ReportedBatch], samples: int) -> list[int]:
    """The samples done before the first of these records, and after each: as it tells, otherwise counted back."""
    done = [samples]
    for batch in reversed(batches):
        columns = zip(reversed(batch.records.samples), reversed(batch.records.positions), strict=True)
        for count, position in columns:
            if position != NO_POSITION:
                done[-1] = position
            done.append(max(0, done[-1] - count))
    return done[::-1]
