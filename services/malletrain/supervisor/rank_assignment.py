"""Workers that wait for their place in the next world, each in a thread of the rendezvous server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from malletrain.supervisor.membership import Slot

AssignmentT = TypeVar("AssignmentT")


class RankAssignment(Generic[AssignmentT]):
    """Every one that asks gets an answer, sooner or later. May be used from any thread."""

    def __init__(self, none: AssignmentT) -> None:
        """Begin with nobody waiting.

        Args:
            none: The answer to those that get no place.
        """
        self._none = none
        self._lock = threading.Lock()
        self._waiting: dict[Slot, Future[AssignmentT]] = {}
        self._given: Mapping[Slot, AssignmentT] | None = None
        self._awaited: set[int] = set()
        self._closed = False

    def ask(self, slot: Slot) -> Future[AssignmentT]:
        """Wait for a place; who asked before for the same slot has gone."""
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
        """Answer all who wait, once the members of these ranks have shown up."""
        with self._lock:
            self._given, self._awaited = places, set(awaited)
        self._answer()

    def show_up(self, rank: int) -> None:
        """A member has."""
        with self._lock:
            self._awaited.discard(rank)
        self._answer()

    def recall(self) -> frozenset[Slot]:
        """Take back what was given and not yet answered; those who wait for it wait on."""
        with self._lock:
            held = frozenset(self._waiting) if self._given is not None else frozenset()
            self._given = None
        return held

    def refuse(self, slot: Slot) -> None:
        """Answer one with no place."""
        with self._lock:
            place = self._waiting.pop(slot, None)
        if place is not None:
            place.set_result(self._none)

    def close(self) -> None:
        """Answer all who wait, or ever will, with no place."""
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
