"""Placeholders: only where they can start, only as many as there is work for, none twice, none forgotten."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.acquisition.ledger import Ledger, Phase, Rules

RULES = Rules(shortest=120, longest=3600, patience=15, refusal=30, surplus=60, most_pending=4, calm=10)
NOW = 1000.0


def submitted(*nodes: str, at: float = NOW) -> Ledger:
    ledger = Ledger()
    for index, node in enumerate(nodes):
        ledger = ledger.submitted(str(index), node, at)
    return ledger


def running(*nodes: str) -> Ledger:
    ledger = submitted(*nodes)
    for index, node in enumerate(nodes):
        ledger = ledger.arrived(str(index), node, NOW)
    return ledger


def test_nodes_that_stay_longest_come_first_and_no_more_than_are_wanted() -> None:
    usable = {"a": 500.0, "b": math.inf, "c": 100.0, "d": 700.0}
    _, orders = Ledger().decide(usable, 2, RULES, NOW)
    assert orders.submit == (("b", 3600.0), ("d", 700.0))


def test_a_node_that_is_idle_for_too_short_is_left_alone() -> None:
    assert Ledger().decide({"a": 119.0}, 9, RULES, NOW)[1].submit == ()


def test_no_node_is_asked_for_twice() -> None:
    ledger = submitted("a").arrived("0", "a", NOW)
    assert ledger.decide({"a": 900.0}, 9, RULES, NOW)[1].submit == ()


def test_few_wait_to_start_at_a_time() -> None:
    usable = {f"n{index}": 900.0 for index in range(9)}
    _, orders = submitted("x", "y").decide(usable, 9, RULES, NOW)
    assert len(orders.submit) == 2


def test_one_that_does_not_start_is_cancelled_and_its_node_left_alone_for_a_while() -> None:
    ledger, orders = submitted("a").decide({"a": 900.0}, 9, RULES, NOW + 15)
    assert orders.cancel == ("0",)
    assert orders.submit == ()
    ledger = ledger.ended("0")
    assert ledger.decide({"a": 900.0}, 9, RULES, NOW + 44)[1].submit == ()
    assert ledger.decide({"a": 900.0}, 9, RULES, NOW + 46)[1].submit == (("a", 900.0),)


def test_nothing_is_taken_while_the_scheduler_gathers_nodes() -> None:
    ledger = running("a", "b").taken("0", NOW)
    assert ledger.running == {"b"}
    assert ledger.decide({"c": 900.0}, 9, RULES, NOW + 9)[1].submit == ()
    assert ledger.decide({"c": 900.0}, 9, RULES, NOW + 10)[1].submit == (("c", 900.0),)


def test_what_is_held_for_nothing_is_given_back() -> None:
    ledger = running("a", "b", "c").work(frozenset({"b", "c"}), frozenset(), NOW)
    assert ledger.decide({}, 1, RULES, NOW + 59)[1].cancel == ()
    ledger, orders = ledger.decide({}, 1, RULES, NOW + 60)
    assert set(orders.cancel) == {"1", "2"}
    assert ledger.decide({}, 1, RULES, NOW + 61)[1].cancel == ()


def test_nodes_with_work_are_never_given_back() -> None:
    ledger = running("a", "b").work(frozenset(), frozenset(), NOW)
    assert ledger.decide({}, 0, RULES, NOW + 999)[1].cancel == ()


def test_placeholders_of_an_earlier_life_are_adopted_and_lost_ones_forgotten() -> None:
    ledger = submitted("a", "b", at=NOW - 100).seen({"1": ("b", Phase.RUNNING), "7": ("g", Phase.RUNNING)}, NOW)
    assert ledger.nodes == {"b", "g"}
    assert ledger.running == {"b", "g"}


def test_one_that_was_submitted_a_moment_ago_may_be_missing_in_an_answer() -> None:
    assert submitted("a").seen({}, NOW + 1).nodes == {"a"}
    assert submitted("a").seen({}, NOW + 31).nodes == frozenset()


def test_what_we_have_cancelled_stays_cancelled_until_it_is_gone() -> None:
    ledger = running("a").cancelled("0", NOW).seen({"0": ("a", Phase.RUNNING)}, NOW).arrived("0", "a", NOW)
    assert ledger.running == frozenset()
    assert ledger.nodes == {"a"}


def test_one_that_does_not_end_is_cancelled_again() -> None:
    ledger = running("a").taken("0", NOW)
    assert ledger.decide({}, 1, RULES, NOW + 14)[1].cancel == ()
    ledger, orders = ledger.decide({}, 1, RULES, NOW + 15)
    assert orders.cancel == ("0",)
    assert ledger.decide({}, 1, RULES, NOW + 29)[1].cancel == ()
    assert ledger.decide({}, 1, RULES, NOW + 30)[1].cancel == ("0",)


def test_a_node_whose_agent_is_silent_is_given_back() -> None:
    ledger = running("a", "b").work(frozenset(), frozenset({"a"}), NOW)
    assert ledger.decide({}, 2, RULES, NOW + 59)[1].cancel == ()
    assert ledger.decide({}, 2, RULES, NOW + 60)[1].cancel == ("0",)
    ledger = ledger.work(frozenset(), frozenset(), NOW + 59)
    assert ledger.decide({}, 2, RULES, NOW + 60)[1].cancel == ()


@st.composite
def histories(draw: st.DrawFn) -> Ledger:
    """A ledger after any events."""
    ledger = Ledger()
    now = NOW
    for number in range(draw(st.integers(0, 25))):
        now += draw(st.floats(0, 20))
        known = sorted(ledger.placeholders)
        node = draw(st.sampled_from(["a", "b", "c", "d", "e"]))
        match draw(st.sampled_from(["decide", "arrived", "taken", "ended", "seen", "work"])):
            case "decide":
                usable = draw(st.dictionaries(st.sampled_from("abcde"), st.floats(0, 1e4)))
                wanted = draw(st.integers(0, 6))
                before = ledger
                ledger, orders = ledger.decide(usable, wanted, RULES, now)
                check(before, ledger, orders.submit, orders.cancel, usable, wanted)
                for index, (name, _) in enumerate(orders.submit):
                    ledger = ledger.submitted(f"{number}-{index}", name, now)
            case "arrived" if known:
                entry = ledger.placeholders[draw(st.sampled_from(known))]
                ledger = ledger.arrived(entry.id, entry.node, now)
            case "taken" if known:
                ledger = ledger.taken(draw(st.sampled_from(known)), now)
            case "ended" if known:
                ledger = ledger.ended(draw(st.sampled_from(known)))
            case "seen":
                found = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
                ledger = ledger.seen({key: (ledger.placeholders[key].node, Phase.RUNNING) for key in found}, now)
            case "work":
                ledger = ledger.work(frozenset({node}) & ledger.nodes, frozenset({node}) & ledger.running, now)
    return ledger


def check(before: Ledger, after: Ledger, submit: tuple, cancel: tuple, usable: dict, wanted: int) -> None:
    names = [name for name, _ in submit]
    assert len(set(names)) == len(names)
    assert not set(names) & before.nodes, "a node is asked for once"
    assert all(RULES.shortest <= seconds <= RULES.longest and seconds <= usable[name] for name, seconds in submit)
    assert set(cancel) <= set(before.placeholders)
    held = [entry for entry in after.placeholders.values() if entry.phase is not Phase.ENDING]
    assert not submit or len(held) + len(submit) <= wanted
    pending = [entry for entry in held if entry.phase is Phase.PENDING]
    assert not submit or len(pending) + len(submit) <= RULES.most_pending


@given(histories())
def test_what_always_holds(ledger: Ledger) -> None:
    assert ledger.running <= ledger.nodes
    by_node = [entry.node for entry in ledger.placeholders.values()]
    assert len(by_node) == len(set(by_node)), "no node has two placeholders of ours"
