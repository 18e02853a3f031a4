"""What a job's script has logged of one metric, as one has it in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from malletrain.api.tables import table_html
from malletrain.v1 import monitor_pb2

_SHOWN = 20


@dataclass(frozen=True)
class LoggedHistory:
    """The points that are kept of one metric, oldest first, in columns of equal length.

    Where a script logs more values than are kept, a point stands for several that follow each other.

    Attributes:
        name: Name of the metric.
        steps: Step of each point: as the script gave it, otherwise the samples that the job had done.
        values: Value of each point: the last one that it stands for.
        unix_seconds: When that was logged, in seconds since the epoch.
        least: The least of the values that the point stands for.
        most: The greatest of them.
        counts: How many they are.
    """

    name: str
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    unix_seconds: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Step and value of each point."""
        return zip(self.steps, self.values, strict=True)

    def __repr__(self) -> str:
        last = f", the last {self.values[-1]:g} at step {self.steps[-1]}" if self.values else ""
        return f"<malletrain.LoggedHistory {self.name!r}: {len(self)} points{last}>"

    def _repr_html_(self) -> str:
        rows = [(f"{step:,}", f"{value:g}") for step, value in self]
        return table_html(("step", self.name), rows[-_SHOWN:])


def history_of(message: monitor_pb2.MetricHistory) -> LoggedHistory:
    """A history as Monitor sends it."""
    points = message.points
    return LoggedHistory(
        message.name,
        tuple(point.step for point in points),
        tuple(point.value for point in points),
        tuple(point.unix_seconds for point in points),
        tuple(point.least for point in points),
        tuple(point.most for point in points),
        tuple(point.values for point in points),
    )
