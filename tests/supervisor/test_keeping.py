"""How long a supervisor stays without workers, and which commands it takes then."""

from __future__ import annotations

from malletrain.supervisor.loop.event_loop import Keep, Keeping


def test_it_stays_for_as_long_as_the_stop_says() -> None:
    kept = Keeping().stop(Keep(300.0, 4), under_way=False).begin(10.0)
    assert (kept.until, kept.awaits_stop) == (310.0, False)
    assert not kept.takes(4), "it was sent before the stop"
    assert kept.takes(5)
    assert kept.end().until is None
    assert not kept.end().takes(4)


def test_a_stop_that_asks_for_the_end_holds() -> None:
    keep = Keep(300.0, 4)
    assert Keeping().stop(keep, under_way=False).stop(None, under_way=True).keep is None
    assert Keeping().stop(None, under_way=False).stop(keep, under_way=True).keep is None
    kept = Keeping().stop(keep, under_way=False).begin(0.0)
    assert kept.stop(None, under_way=False).keep is None


def test_after_the_release_of_all_hosts_it_takes_no_command_before_the_stop() -> None:
    """A command that was sent before may still arrive."""
    released = Keeping().stop(Keep(300.0), under_way=False).begin(0.0)
    assert released.awaits_stop
    assert not released.takes(7)
    stopped = released.stop(Keep(300.0, 7), under_way=False).begin(1.0)
    assert (stopped.takes(7), stopped.takes(8)) == (False, True)


def test_a_release_and_a_stop_of_the_same_moment_are_one() -> None:
    first = Keeping().stop(Keep(300.0), under_way=False).stop(Keep(200.0, 7), under_way=True)
    assert first.keep == Keep(200.0, 7)
    assert first.keep == Keeping().stop(Keep(200.0, 7), under_way=False).stop(Keep(300.0), under_way=True).keep
