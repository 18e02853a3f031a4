"""The simulated clock."""

from __future__ import annotations

from math import inf

from malletrain.simulator.services.event_queue import EARLY, EventQueue
from tests.simulator.services.scripts import run_until


def test_actions_run_in_the_order_of_time_then_of_order_then_of_the_calls() -> None:
    queue, ran = EventQueue(), []
    for time, name, order in ((2.0, "d", 1), (1.0, "b", 1), (1.0, "c", 1), (1.0, "a", EARLY)):
        queue.at(time, lambda name=name: ran.append(name), order)
    run_until(queue, 5.0)
    assert ran == ["a", "b", "c", "d"]
    assert queue.now == 5.0


def test_an_instant_includes_what_its_actions_add_for_it() -> None:
    queue, ran = EventQueue(), []
    queue.at(3.0, lambda: (ran.append("first"), queue.at(1.0, lambda: ran.append("second"))))
    queue.at(4.0, lambda: ran.append("later"))
    queue.run_instant()
    assert (ran, queue.now, queue.next_time) == (["first", "second"], 3.0, 4.0)


def test_the_end_is_not_part_of_the_time_until_it() -> None:
    queue, ran = EventQueue(), []
    queue.at(5.0, lambda: ran.append("at the end"))
    run_until(queue, 5.0)
    assert not ran
    run_until(queue, 6.0)
    assert (ran, queue.next_time) == (["at the end"], inf)
