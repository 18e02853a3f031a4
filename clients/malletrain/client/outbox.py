"""What the sidecar still has to deliver: pure, no I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from malletrain.client.ring import Record

CAPACITY = 100_000
"""Records kept while Monitor can't be reached."""


class Outbox:
    """Records that are not acknowledged, oldest first: those under way on the present stream, then those that wait.

    Attributes:
        dropped: Records lost so far, here or in the ring.
        floor: Every record up to this sequence is acknowledged or counted as dropped.
    """

    def __init__(self, floor: int = 0, dropped: int = 0, capacity: int = CAPACITY) -> None:
        """Go on where a sidecar before left off.

        Args:
            floor: See above.
            dropped: See above.
            capacity: Most records to keep.
        """
        self.floor = floor
        self.dropped = dropped
        self._capacity = capacity
        self._under_way: deque[Record] = deque()
        self._waiting: deque[Record] = deque()

    def __len__(self) -> int:
        return len(self._under_way) + len(self._waiting)

    @property
    def under_way(self) -> int:
        """Records sent on the present stream and not acknowledged."""
        return len(self._under_way)

    def add(self, records: Iterable[Record], lost: int) -> None:
        """Add what came from the ring; the oldest go where there is no more room.

        Args:
            records: Ascending, behind all that were added before.
            lost: Records that the ring has lost before the last of these.
        """
        self.dropped += lost
        self._waiting.extend(records)
        while len(self) > self._capacity:
            self._drop(self._under_way or self._waiting)

    def take(self, limit: int) -> list[Record]:
        """The next records to send, at most `limit`, without a gap in their sequences; they are under way now."""
        taken: list[Record] = []
        while self._waiting and len(taken) < limit:
            if taken and self._waiting[0].sequence != taken[-1].sequence + 1:
                break
            taken.append(self._waiting.popleft())
        self._under_way.extend(taken)
        return taken

    def acknowledge(self, sequence: int) -> None:
        """Forget the records up to a sequence: Monitor has them, from this stream or one before."""
        for records in (self._under_way, self._waiting):
            while records and records[0].sequence <= sequence:
                self.floor = records.popleft().sequence

    def rewind(self) -> None:
        """The stream is lost: what was under way on it waits again."""
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()

    def refuse(self) -> None:
        """Monitor will never take what is under way: drop it rather than send it for ever."""
        while self._under_way:
            self._drop(self._under_way)

    def _drop(self, records: deque[Record]) -> None:
        self.floor = records.popleft().sequence
        self.dropped += 1
