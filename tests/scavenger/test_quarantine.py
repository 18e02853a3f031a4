from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.machine.quarantine import Quarantine, QuarantinePolicy, read_records

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


def test_a_quarantine_that_is_lifted_leaves_nothing_behind() -> None:
    quarantine = Quarantine(RULES)
    for count in range(3):
        quarantine.failed("n1", count, "a", "j1 (ada)")
        quarantine.failed("n2", count)
    quarantine.failed("n3", 3)
    assert quarantine.lift({"n1", "n3", "n9"}, 4) == ["n1"]
    assert list(quarantine.quarantined(4)) == ["n2"]
    assert quarantine.failed("n1", 5) == quarantine.failed("n3", 5) == 0, "their failures are forgotten"
    assert quarantine.lift(None, 6) == ["n2"]


def test_what_is_known_outlasts_a_restart_but_for_what_makes_no_sense() -> None:
    before = Quarantine(RULES)
    for count in range(3):
        before.failed("n1", count, "a broken GPU", "j1 (ada), j2 (bob)")
    stored = json.loads(json.dumps(before.to_json()))
    stored |= {"n2": {"score": "x"}, "n3": 7, "n4": {**stored["n1"], "until": float("nan")}}
    after = Quarantine(RULES, read_records(stored))
    assert after.quarantined(3) == before.quarantined(3)
    assert list(after.quarantined(3)) == ["n1"]


@given(gaps=st.lists(st.floats(0, 1000), max_size=40))
def test_no_quarantine_is_longer_than_the_longest(gaps: list[float]) -> None:
    quarantine = Quarantine(RULES)
    now = 0.0
    for gap in gaps:
        now += gap
        assert 0 <= quarantine.failed("n1", now) <= RULES.longest_seconds
