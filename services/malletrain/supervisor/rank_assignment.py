"""Workers that wait for their rank in the next group, each in a thread of the rendezvous server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from malletrain.supervisor.membership import Slot

AssignmentT = TypeVar("AssignmentT")


class RankAssignment(Generic[AssignmentT]):
    """Every worker that asks for its place gets an answer in the end. May be used from any thread."""

    def __init__(self, none: AssignmentT) -> None:
        """Begin with no worker waiting.

        Args:
            none: The answer to workers that get no place.
        """
        self._none = none
        self._lock = threading.Lock()
        self._waiting: dict[Slot, Future[AssignmentT]] = {}
        self._given: Mapping[Slot, AssignmentT] | None = None
        self._awaited: set[int] = set()
        self._closed = False

    def ask(self, slot: Slot) -> Future[AssignmentT]:
        """Ask for the place of a slot. A worker that has asked for the same slot before gets none: it has ended."""
        place: Future[AssignmentT] = Future()
        with self._lock:
            if self._closed:
                place.set_result(self._none)
                return place
            earlier = self._waiting.pop(slot, None)
            self._waiting[slot] = place
        if earlier is not None:
            earlier.set_result(self._none)
        return place

    def give(self, places: Mapping[Slot, AssignmentT], awaited: Iterable[int]) -> None:
        """Answer all that wait, once the workers of these ranks have begun to connect."""
        with self._lock:
            self._given, self._awaited = places, set(awaited)
        self._answer()

    def show_up(self, rank: int) -> None:
        """The worker of a rank has begun to connect."""
        with self._lock:
            self._awaited.discard(rank)
        self._answer()

    def recall(self) -> frozenset[Slot]:
        """Take back places that were given but not yet answered.

        Returns:
            The slots that go on waiting.
        """
        with self._lock:
            held = frozenset(self._waiting) if self._given is not None else frozenset()
            self._given = None
        return held

    def refuse(self, slot: Slot) -> None:
        """Give no place to the worker that waits for a slot."""
        with self._lock:
            place = self._waiting.pop(slot, None)
        if place is not None:
            place.set_result(self._none)

    def close(self) -> None:
        """Give no place to all that wait, and to all that ask from now on."""
        with self._lock:
            self._closed = True
        self.give({}, ())

    def _answer(self) -> None:
        with self._lock:
            if self._given is None or self._awaited:
                return
            places, self._given = self._given, None
            waiting, self._waiting = self._waiting, {}
        for slot, place in waiting.items():
            place.set_result(places.get(slot, self._none))
