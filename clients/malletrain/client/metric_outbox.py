"""Logged values that the sidecar still has to deliver. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from malletrain.client.metric_ring import RingMetric
from malletrain.client.ring import METRIC_SLOTS

CAPACITY = 8 * METRIC_SLOTS
"""Most values that are kept while Monitor can't be reached."""
_MESSAGE_VALUES = 1024
"""Most values in flight: Monitor takes no more in one message."""


class MetricOutbox:
    """Unacknowledged values, oldest first: those sent on the present stream, then those that wait to be sent.

    Attributes:
        floor: Every value up to this number is acknowledged, or dropped.
    """

    def __init__(self, floor: int = 0, capacity: int = CAPACITY) -> None:
        """Continue where an earlier sidecar ended.

        Args:
            floor: As the attribute.
            capacity: Most values to keep.
        """
        self.floor = floor
        self._capacity = capacity
        self._in_flight: deque[RingMetric] = deque()
        self._waiting: deque[RingMetric] = deque()

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting)

    @property
    def may_send(self) -> bool:
        """Whether values wait, and Monitor has acknowledged enough of those before."""
        return bool(self._waiting) and len(self._in_flight) < _MESSAGE_VALUES

    def add(self, values: Iterable[RingMetric]) -> None:
        """Add values from the ring, in order. If there are too many, the oldest are dropped."""
        self._waiting.extend(values)
        while len(self) > self._capacity:
            self._drop(self._in_flight or self._waiting)

    def take(self) -> list[RingMetric]:
        """Take the next values to send."""
        taken = [
            self._waiting.popleft() for _ in range(min(len(self._waiting), _MESSAGE_VALUES - len(self._in_flight)))
        ]
        self._in_flight.extend(taken)
        return taken

    def acknowledge(self, number: int) -> None:
        """Remove the values up to a number: Monitor needs them no more."""
        for values in (self._in_flight, self._waiting):
            while values and values[0].number <= number:
                self._drop(values)

    def rewind(self) -> None:
        """The stream is lost: what was sent on it and is not acknowledged has to be sent again."""
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def refuse(self) -> None:
        """Monitor has rejected what was sent: drop it, as it would be rejected again."""
        while self._in_flight:
            self._drop(self._in_flight)

    def clear(self) -> None:
        """Drop everything."""
        self.acknowledge(self._waiting[-1].number if self._waiting else 0)
        self.refuse()

    def _drop(self, values: deque[RingMetric]) -> None:
        self.floor = max(self.floor, values.popleft().number)
