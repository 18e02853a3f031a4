"""Where samples lie in a ring of bytes: each behind the one before, the oldest give way. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

ALIGNMENT = 64
"""Places begin at multiples of this many bytes: a cache line."""


class Place(NamedTuple):
    """A part of the ring.

    Attributes:
        offset: Its first byte.
        length: Its bytes.
        owner: What lies there.
    """

    offset: int
    length: int
    owner: int


class RingSpace:
    """The places of a ring, in the order in which they were taken."""

    def __init__(self, size: int, most: int) -> None:
        """Begin empty.

        Args:
            size: Bytes of the ring.
            most: Most places at a time.
        """
        self.size = size
        self.most = most
        self._places: deque[Place] = deque()
        self._head = 0

    @property
    def places(self) -> tuple[Place, ...]:
        """All places, the oldest first."""
        return tuple(self._places)

    @property
    def oldest(self) -> Place | None:
        """The place that has to give way first; None in an empty ring."""
        return self._places[0] if self._places else None

    def shed(self, length: int, is_needed: Callable[[int], bool], count: int = 1) -> tuple[bool, list[Place]]:
        """Give up the oldest places until there is room, or until one of them is needed.

        Args:
            length: Bytes for which there has to be room, one behind the other.
            is_needed: Whether what lies in a place has to stay.
            count: Number of places that these bytes are for.

        Returns:
            Whether there is room now, and the places that were given up.
        """
        shed: list[Place] = []
        while not self._has_room(length, count):
            if not self._places or is_needed(self._places[0].owner):
                return False, shed
            shed.append(self._places.popleft())
        return True, shed

    def take(self, length: int, owner: int) -> Place:
        """Take the next place; `shed` has made room for it.

        Raises:
            ValueError: there is no room.
        """
        offset = self._next(length)
        if offset is None or not self._has_room(length):
            raise ValueError(f"length: expected one for which there is room, got {length}")
        place = Place(offset, length, owner)
        self._places.append(place)
        self._head = offset + length + -length % ALIGNMENT
        return place

    def _has_room(self, length: int, count: int = 1) -> bool:
        return len(self._places) + count <= self.most and self._next(length) is not None

    def _next(self, length: int) -> int | None:
        """Where the next place would begin; None without room."""
        if not self._places:
            return 0 if length <= self.size else None
        tail = self._places[0].offset
        if self._head > tail:
            if self._head + length <= self.size:
                return self._head
            return 0 if length <= tail else None
        return self._head if self._head + length <= tail else None
