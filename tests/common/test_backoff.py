from __future__ import annotations

from malletrain.common.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert (backoff.active, backoff.seconds) == (False, 0.0)
    assert [backoff.fail() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    assert (backoff.active, backoff.seconds) == (True, 3.0)
    backoff.succeed()
    assert not backoff.active
    assert backoff.fail() == 0.5


def test_the_first_pause_is_no_longer_than_the_longest() -> None:
    assert Backoff(5.0, 1.0).fail() == 1.0
