"""Records and logged values that the sidecar still has to deliver. Pure."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from malletrain.client.metric_ring import RingMetric
from malletrain.client.ring import METRIC_SLOTS, RingRecord

EntryT = TypeVar("EntryT")

MAX_RECORDS = 100_000
"""Most records that are kept while Monitor can't be reached."""
MAX_VALUES = 8 * METRIC_SLOTS
"""Most logged values that are kept then."""
_MESSAGE_VALUES = 1024
"""Most values in flight: Monitor takes no more in one message."""

SEND_SECONDS = 0.1
"""Least time between two messages with records: a message costs more than the records in it."""
UNANSWERED_SECONDS = 1.0
"""Time between two if Monitor has not acknowledged the one before: it answers as often as it can bear."""


class _Unacknowledged(abc.ABC, Generic[EntryT]):
    """What is not acknowledged, oldest first: what was sent on the present stream, then what waits to be sent."""

    def __init__(self, floor: int, capacity: int) -> None:
        self.floor = floor
        self._capacity = capacity
        self._in_flight: deque[EntryT] = deque()
        self._waiting: deque[EntryT] = deque()

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting)

    def _append(self, entries: Iterable[EntryT]) -> None:
        """Add entries from the ring, in order. If there are too many, the oldest are dropped."""
        self._waiting.extend(entries)
        while len(self) > self._capacity:
            self._drop(self._in_flight or self._waiting)

    def rewind(self) -> None:
        """The stream is lost: what was sent on it and is not acknowledged has to be sent again."""
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def refuse(self) -> None:
        """Monitor has rejected what was sent: drop it, as it would be rejected again."""
        while self._in_flight:
            self._drop(self._in_flight)

    @abc.abstractmethod
    def _drop(self, entries: deque[EntryT]) -> None:
        """Drop the oldest of the entries."""


class Outbox(_Unacknowledged[RingRecord]):
    """Unacknowledged records, oldest first.

    Attributes:
        dropped: Records lost so far, here or in the ring.
        floor: Every record up to this sequence number is acknowledged or counted as dropped.
    """

    def __init__(self, floor: int = 0, dropped: int = 0, capacity: int = MAX_RECORDS) -> None:
        """Continue where an earlier sidecar ended.

        Args:
            floor: As the attribute.
            dropped: As the attribute.
            capacity: Most records to keep.
        """
        super().__init__(floor, capacity)
        self.dropped = dropped

    @property
    def in_flight(self) -> int:
        """Records sent on the present stream and not acknowledged."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """Records that have not been sent on the present stream."""
        return len(self._waiting)

    def add(self, records: Iterable[RingRecord], lost: int) -> None:
        """Add records from the ring. If there are too many, the oldest are dropped.

        Args:
            records: By ascending sequence number, after all that were added before.
            lost: Records that were lost in the ring before the last of these.
        """
        self.dropped += lost
        self._append(records)

    def is_due(self, waited_seconds: float) -> bool:
        """Whether the records that wait may go, as long after the last message with records."""
        return waited_seconds >= (UNANSWERED_SECONDS if self._in_flight else SEND_SECONDS)

    def take(self, limit: int) -> list[RingRecord]:
        """Take the next records to send, at most `limit`, without a gap in their sequence numbers."""
        taken: list[RingRecord] = []
        while self._waiting and len(taken) < limit:
            if taken and self._waiting[0].sequence != taken[-1].sequence + 1:
                break
            taken.append(self._waiting.popleft())
        self._in_flight.extend(taken)
        return taken

    def acknowledge(self, sequence: int) -> None:
        """Remove the records up to a sequence number: Monitor has stored them."""
        for records in (self._in_flight, self._waiting):
            while records and records[0].sequence <= sequence:
                self.floor = records.popleft().sequence

    def _drop(self, entries: deque[RingRecord]) -> None:
        self.floor = entries.popleft().sequence
        self.dropped += 1


class MetricOutbox(_Unacknowledged[RingMetric]):
    """Unacknowledged logged values, oldest first.

    Attributes:
        floor: Every value up to this number is acknowledged, or dropped.
    """

    def __init__(self, floor: int = 0, capacity: int = MAX_VALUES) -> None:
        """Continue where an earlier sidecar ended.

        Args:
            floor: As the attribute.
            capacity: Most values to keep.
        """
        super().__init__(floor, capacity)

    @property
    def may_send(self) -> bool:
        """Whether values wait, and Monitor has acknowledged enough of those before."""
        return bool(self._waiting) and len(self._in_flight) < _MESSAGE_VALUES

    def add(self, values: Iterable[RingMetric]) -> None:
        """Add values from the ring, in order. If there are too many, the oldest are dropped."""
        self._append(values)

    def take(self) -> list[RingMetric]:
        """Take the next values to send."""
        count = min(len(self._waiting), _MESSAGE_VALUES - len(self._in_flight))
        taken = [self._waiting.popleft() for _ in range(count)]
        self._in_flight.extend(taken)
        return taken

    def acknowledge(self, number: int) -> None:
        """Remove the values up to a number: Monitor needs them no more."""
        for values in (self._in_flight, self._waiting):
            while values and values[0].number <= number:
                self._drop(values)

    def clear(self) -> None:
        """Drop everything."""
        self.acknowledge(self._waiting[-1].number if self._waiting else 0)
        self.refuse()

    def _drop(self, entries: deque[RingMetric]) -> None:
        self.floor = max(self.floor, entries.popleft().number)
