from __future__ import annotations

import gc
import weakref
from typing import Any

from malletrain.runtime.stalls import short_collections


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself: Any = self


def test_what_has_been_found_alive_is_looked_through_again_after_an_hour() -> None:
    now = [0.0]
    with short_collections(lambda: now[0]):
        knot = Knot()
        found = weakref.ref(knot)
        gc.collect()
        del knot
        gc.collect()
        assert found() is not None
        now[0] = 3600.0
        gc.collect()
        assert found() is None


def test_what_has_been_found_alive_is_looked_through_again_where_there_is_much_more_of_it() -> None:
    now = [0.0]
    with short_collections(lambda: now[0]):
        knot = Knot()
        found = weakref.ref(knot)
        gc.collect()
        del knot
        now[0] += 61.0
        gc.collect()
        assert found() is not None
        many = [[number] for number in range(2 * gc.get_freeze_count() + 300_000)]
        gc.collect()  # finds them alive
        assert found() is not None
        now[0] += 61.0
        gc.collect()
        assert found() is None
        del many


def test_new_garbage_is_found_at_once() -> None:
    with short_collections():
        found = weakref.ref(Knot())
        gc.collect()
        assert found() is None


def test_afterwards_collections_are_as_before() -> None:
    callbacks, thresholds = list(gc.callbacks), gc.get_threshold()
    with short_collections():
        knot = Knot()
        found = weakref.ref(knot)
        gc.collect()
        del knot
    assert gc.callbacks == callbacks
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert found() is None
