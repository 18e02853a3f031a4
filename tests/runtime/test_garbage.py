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


def test_new_garbage_is_found_at_once() -> None:
    with short_collections():
        found = weakref.ref(Knot())
        gc.collect()
        assert found() is None


def test_afterwards_collections_are_as_before() -> None:
    callbacks = list(gc.callbacks)
    with short_collections():
        knot = Knot()
        found = weakref.ref(knot)
        gc.collect()
        del knot
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert found() is None
