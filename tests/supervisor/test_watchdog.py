from __future__ import annotations

from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.watchdog import Watchdog

A, B = Slot("a", 0), Slot("b", 0)


def test_who_shows_the_sign_for_too_long_is_overdue() -> None:
    watchdog = Watchdog(5.0).after_look({A}, 100.0).after_look({A, B}, 104.0)
    assert watchdog.overdue(104.9) == set()
    assert watchdog.overdue(105.0) == {A}
    assert watchdog.overdue(109.0) == {A, B}


def test_who_moves_again_is_forgotten() -> None:
    watchdog = Watchdog(5.0).after_look({A}, 100.0).after_look(set(), 104.0).after_look({A}, 104.5)
    assert watchdog.overdue(109.0) == set()
    assert watchdog.overdue(109.5) == {A}
