from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.quarantine import Quarantine, QuarantinePolicy

RULES = QuarantinePolicy(failures=3, half_life_seconds=100, longest_seconds=1000)


def test_failures_soon_after_each_other_lead_to_a_quarantine_that_ends() -> None:
    quarantine = Quarantine(RULES)
    assert quarantine.failed("n1", 0, "a") == 0
    assert quarantine.failed("n1", 5, "b") == 0
    seconds = quarantine.failed("n1", 10, "c")
    assert 80 < seconds <= 100
    assert quarantine.quarantined(10)["n1"].reason == "c"
    assert not quarantine.quarantined(10 + seconds)
    # It comes back with half of its score: the next failures count more.
    assert quarantine.failed("n1", 120) == 0
    assert quarantine.failed("n1", 121) > seconds - 20


def test_failures_far_apart_do_not() -> None:
    quarantine = Quarantine(RULES)
    assert all(quarantine.failed("n1", 250.0 * count) == 0 for count in range(50))


def test_one_node_does_not_suffer_for_another() -> None:
    quarantine = Quarantine(RULES)
    for count in range(6):
        quarantine.failed("bad", count)
    assert quarantine.failed("good", 7) == 0
    assert list(quarantine.quarantined(7)) == ["bad"]


@given(gaps=st.lists(st.floats(0, 1000), max_size=40))
def test_no_quarantine_is_longer_than_the_longest(gaps: list[float]) -> None:
    quarantine = Quarantine(RULES)
    now = 0.0
    for gap in gaps:
        now += gap
        assert 0 <= quarantine.failed("n1", now) <= RULES.longest_seconds
