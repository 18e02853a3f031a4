"""The step of a logged value whose script gives none: the samples that the job had done by then. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from malletrain.monitor.machine.progress import NO_POSITION, ReportedBatch
from malletrain.monitor.training_metrics.history import LoggedValue

_MAX_KNOWN = 2048
"""Batches whose ends a reporter's history of samples keeps: some seconds of the quickest loops."""


class SamplesByTime:
    """How many samples a job had done at each moment of the last while, as one of its reporters tells.

    Values come in other messages than the batches before them: a reporter sends values once a second at most.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self._times: list[float] = []
        self._done = [0]

    def add(self, batches: Sequence[ReportedBatch], samples: int) -> None:
        """Take in batches.

        Args:
            batches: What the reporter has sent since the last call, oldest first.
            samples: Samples that the job has done, these batches included.
        """
        before, *after = _samples_after(batches, samples)
        times = [at for batch in batches for at in batch.records.unix_seconds]
        # The last moment before is known better now: other reporters may have told of batches since.
        self._done[-1] = before
        self._times += times
        self._done += after
        if (surplus := len(self._times) - _MAX_KNOWN) > 0:
            del self._times[:surplus], self._done[:surplus]

    def at(self, unix_seconds: float) -> int:
        """Samples done at a moment, in seconds since the epoch; before all that is known, those at its beginning."""
        return self._done[bisect_right(self._times, unix_seconds)]


def with_steps(values: Iterable[LoggedValue], known: SamplesByTime) -> tuple[LoggedValue, ...]:
    """The values, each with a step.

    Args:
        values: What a job's reporter has sent.
        known: How many samples the job had done when.
    """
    return tuple(
        value if value.step is not None else value._replace(step=known.at(value.unix_seconds)) for value in values
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
