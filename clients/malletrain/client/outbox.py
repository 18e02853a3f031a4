"""Records that the sidecar still has to deliver. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from malletrain.client.ring import RingRecord

CAPACITY = 100_000
"""Most records that are kept while Monitor can't be reached."""

_SEND_SECONDS = 0.1
"""Least time between two messages with records: a message costs more than the records in it."""
_UNANSWERED_SECONDS = 1.0
"""Time between two if Monitor has not acknowledged the one before: it answers as often as it can bear."""


class Outbox:
    """Unacknowledged records, oldest first: those sent on the present stream, then those that wait to be sent.

    Attributes:
        dropped: Records lost so far, here or in the ring.
        floor: Every record up to this sequence number is acknowledged or counted as dropped.
    """

    def __init__(self, floor: int = 0, dropped: int = 0, capacity: int = CAPACITY) -> None:
        """Continue where an earlier sidecar ended.

        Args:
            floor: As the attribute.
            dropped: As the attribute.
            capacity: Most records to keep.
        """
        self.floor = floor
        self.dropped = dropped
        self._capacity = capacity
        self._in_flight: deque[RingRecord] = deque()
        self._waiting: deque[RingRecord] = deque()

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting)

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
        self._waiting.extend(records)
        while len(self) > self._capacity:
            self._drop(self._in_flight or self._waiting)

    def is_due(self, waited_seconds: float) -> bool:
        """Whether the records that wait may go, as long after the last message with records."""
        return waited_seconds >= (_UNANSWERED_SECONDS if self._in_flight else _SEND_SECONDS)

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

    def rewind(self) -> None:
        """The stream is lost: what was sent on it and is not acknowledged has to be sent again."""
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def refuse(self) -> None:
        """Monitor has rejected what was sent: drop it, as it would be rejected again."""
        while self._in_flight:
            self._drop(self._in_flight)

    def _drop(self, records: deque[RingRecord]) -> None:
        self.floor = records.popleft().sequence
        self.dropped += 1
