"""Placeholders: only where they can start, only as many as there is work for, none twice, none forgotten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from malletrain.model.node_needs import NodeNeeds
from malletrain.scavenger.machine.node_worth import NodeWorth
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholder_validation import validate_actions, validate_state
from malletrain.scavenger.machine.placeholders import (
    EndedPlaceholder,
    ListedPlaceholder,
    PlaceholderPhase,
    PlaceholderPolicy,
)
from malletrain.scavenger.machine.submission_backoff import BackoffPolicy

POLICY = PlaceholderPolicy(
    shortest_seconds=120,
    longest_seconds=3600,
    patience_seconds=15,
    refusal_seconds=30,
    surplus_seconds=60,
    most_pending=4,
    calm_seconds=10,
    backoff=BackoffPolicy(backoff_seconds=8, backoff_max_seconds=100, pause_after_failures=3),
)
NOW = 1000.0
USABLE = {"a": 900.0, "b": 900.0, "c": 900.0}


def submitted(*nodes: str, at: float = NOW) -> PlaceholderState:
    state = PlaceholderState()
    for index, node in enumerate(nodes):
        state = state.submitted(str(index), node, at)
    return state


def running(*nodes: str) -> PlaceholderState:
    state = submitted(*nodes)
    for index, node in enumerate(nodes):
        state = state.started(str(index), node, NOW)
    return state


def runs(node: str) -> ListedPlaceholder:
    return ListedPlaceholder(node, PlaceholderPhase.RUNNING)


def waits(node: str, blocked: str = "") -> ListedPlaceholder:
    return ListedPlaceholder(node, PlaceholderPhase.PENDING, blocked)


def listed(state: PlaceholderState, found: Mapping[str, ListedPlaceholder], now: float) -> PlaceholderState:
    return state.listed(found, now, now)


def test_nodes_that_stay_longest_come_first_and_no_more_than_are_wanted() -> None:
    usable = {"a": 500.0, "b": math.inf, "c": 100.0, "d": 700.0}
    _, actions = PlaceholderState().decide(usable, 2, POLICY, NOW)
    assert actions.submit == (("b", 3600.0), ("d", 700.0))


def test_a_node_that_is_idle_for_too_short_is_left_alone() -> None:
    assert PlaceholderState().decide({"a": 119.0}, 9, POLICY, NOW)[1].submit == ()


def test_no_node_is_asked_for_twice() -> None:
    state = submitted("a").started("0", "a", NOW)
    assert state.decide({"a": 900.0}, 9, POLICY, NOW)[1].submit == ()


def test_few_wait_to_start_at_a_time() -> None:
    usable = {f"n{index}": 900.0 for index in range(9)}
    _, actions = submitted("x", "y").decide(usable, 9, POLICY, NOW)
    assert len(actions.submit) == 2


def test_one_that_does_not_start_is_cancelled_and_its_node_left_alone_for_a_while() -> None:
    state, actions = submitted("a").decide({"a": 900.0}, 9, POLICY, NOW + 15)
    assert actions.cancel == ("0",)
    assert actions.submit == ()
    assert not state.backoff.active, "its node was taken, which is nobody's fault"
    state = state.ended("0", NOW + 16)
    assert state.decide({"a": 900.0}, 9, POLICY, NOW + 44)[1].submit == ()
    assert state.decide({"a": 900.0}, 9, POLICY, NOW + 46)[1].submit == (("a", 900.0),)


def test_nothing_is_taken_while_the_scheduler_gathers_nodes() -> None:
    state = running("a", "b").preempted("0", NOW, POLICY)
    assert state.running == {"b"}
    assert state.decide({"c": 900.0}, 9, POLICY, NOW + 9)[1].submit == ()
    assert state.decide({"c": 900.0}, 9, POLICY, NOW + 10)[1].submit == (("c", 900.0),)


def test_what_is_held_for_nothing_is_given_back_the_newest_first() -> None:
    state = running("a", "b", "c").observed(frozenset({"b", "c"}), frozenset(), NOW)
    assert state.decide({}, 1, POLICY, NOW + 59)[1].cancel == ()
    after, actions = state.decide({}, 1, POLICY, NOW + 60)
    assert set(actions.cancel) == {"1", "2"}
    assert after.decide({}, 1, POLICY, NOW + 61)[1].cancel == ()
    newest = state.submitted("3", "d", NOW + 1).started("3", "d", NOW + 2)
    newest = newest.observed(frozenset({"b", "d"}), frozenset(), NOW + 2)
    assert newest.decide({}, 3, POLICY, NOW + 62)[1].cancel == ("3",)


def test_what_suits_no_job_is_given_back_first_and_does_not_count() -> None:
    worth = NodeWorth(
        {NodeNeeds(gpu="a100"): 2}, {"b": NodeFacts(gpu_type="a100", gpus=4), "d": NodeFacts("", "a100", 4)}
    )
    state = running("a", "b", "c").observed(frozenset({"b", "c"}), frozenset(), NOW)
    usable = {"d": 900.0, "e": 900.0}
    early = state.decide(usable, 2, POLICY, NOW + 11, worth=worth)[1]
    assert (early.submit, early.cancel) == ((("d", 900.0),), ())
    assert state.decide(usable, 2, POLICY, NOW + 60, worth=worth)[1].cancel == ("2",)


def test_nodes_with_work_are_never_given_back() -> None:
    state = running("a", "b").observed(frozenset(), frozenset(), NOW)
    assert state.decide({}, 0, POLICY, NOW + 999)[1].cancel == ()


def test_placeholders_of_an_earlier_life_are_adopted_and_lost_ones_forgotten() -> None:
    state = listed(submitted("a", "b", at=NOW - 100), {"1": runs("b"), "7": runs("g")}, NOW)
    assert state.nodes == {"b", "g"}
    assert state.running == {"b", "g"}


def test_one_that_was_submitted_a_moment_ago_may_be_missing_in_an_answer() -> None:
    assert listed(submitted("a"), {}, NOW + 1).nodes == {"a"}
    assert listed(submitted("a"), {}, NOW + 31).nodes == frozenset()


def test_what_we_have_cancelled_stays_cancelled_until_it_is_gone() -> None:
    state = listed(running("a").cancelled("0", NOW), {"0": runs("a")}, NOW).started("0", "a", NOW)
    assert state.running == frozenset()
    assert state.nodes == {"a"}


def test_an_agent_that_has_reported_counts_more_than_an_older_list() -> None:
    assert listed(running("a"), {"0": waits("a")}, NOW).running == {"a"}


def test_one_that_does_not_end_is_cancelled_again() -> None:
    state = running("a").preempted("0", NOW, POLICY)
    assert state.decide({}, 1, POLICY, NOW + 14)[1].cancel == ()
    state, actions = state.decide({}, 1, POLICY, NOW + 15)
    assert actions.cancel == ("0",)
    assert state.decide({}, 1, POLICY, NOW + 29)[1].cancel == ()
    assert state.decide({}, 1, POLICY, NOW + 30)[1].cancel == ("0",)


def test_a_node_whose_agent_is_silent_is_given_back() -> None:
    state = running("a", "b").observed(frozenset(), frozenset({"a"}), NOW)
    assert state.decide({}, 2, POLICY, NOW + 59)[1].cancel == ()
    after, actions = state.decide({}, 2, POLICY, NOW + 60)
    assert actions.cancel == ("0",)
    assert not after.backoff.active, "the agent has reported before: its node has failed, not the placeholder"
    state = state.observed(frozenset(), frozenset(), NOW + 59)
    assert state.decide({}, 2, POLICY, NOW + 60)[1].cancel == ()


# -- failures ----------------------------------------------------------------------------------------------------------


def test_after_a_refusal_one_node_is_tried_per_delay_and_a_success_ends_that() -> None:
    state = PlaceholderState().submission_failed("a", "Invalid account", NOW, NOW, POLICY)
    assert state.backoff.error == "Invalid account"
    assert state.decide(USABLE, 9, POLICY, NOW + 7)[1].submit == ()
    state, actions = state.decide(USABLE, 9, POLICY, NOW + 8)
    assert actions.submit == (("b", 900.0),), "one, and on another node"
    state = state.submitted("1", "b", NOW + 8)
    assert state.decide(USABLE, 9, POLICY, NOW + 20)[1].submit == (), "not while it is not known what becomes of it"
    state = state.started("1", "b", NOW + 21)
    assert not state.backoff.active
    assert state.decide(USABLE, 9, POLICY, NOW + 22)[1].submit == (("c", 900.0),), "node a is still avoided"
    assert len(state.decide(USABLE, 9, POLICY, NOW + 31)[1].submit) == 2


def test_after_some_failures_submission_pauses_and_then_one_probe_is_tried() -> None:
    state, now, tried = PlaceholderState(), NOW, []
    usable = {f"n{index:02d}": 900.0 for index in range(64)}
    while now < NOW + 400:
        state, actions = state.decide(usable, 64, POLICY, now)
        for node, _ in actions.submit[:1]:  # the shell stops at the first that is refused
            tried.append(now - NOW)
            state = state.submission_failed(node, "quota", now, now, POLICY)
        now += 1
    assert tried == [0, 8, 24, 124, 224, 324]
    assert state.backoff.paused(POLICY.backoff)


def test_many_that_end_at_once_count_once() -> None:
    state = submitted("a", "b", "c")
    assert state.missing({}, NOW + 2, POLICY) == ["0", "1", "2"]
    for identifier in ("0", "1", "2"):
        state = state.ended_early(identifier, EndedPlaceholder("FAILED (NonZeroExitCode)"), NOW + 2, POLICY)
    assert state.placeholders == {}
    assert state.backoff.failures == 1
    assert "FAILED (NonZeroExitCode)" in state.backoff.error
    assert set(state.avoided_until) == {"a", "b", "c"}


def test_a_placeholder_is_not_missing_that_may_be_younger_than_the_list_or_has_reported() -> None:
    state = submitted("a").submitted("1", "b", NOW + 3).started("0", "a", NOW)
    assert state.missing({}, NOW + 2, POLICY) == []
    assert state.missing({}, NOW + 3, POLICY) == ["1"]
    assert listed(PlaceholderState(), {"7": waits("g")}, NOW).missing({}, NOW + 9, POLICY) == [], "not ours to judge"


def test_one_that_was_preempted_before_its_agent_reported_has_not_failed() -> None:
    state = submitted("a").ended_early("0", EndedPlaceholder("PREEMPTED", failed=False), NOW + 2, POLICY)
    assert not state.backoff.active
    assert state.decide({"c": 900.0}, 9, POLICY, NOW + 3)[1].submit == (), "the scheduler gathers nodes"


def test_one_whose_agent_reports_while_its_end_is_asked_for_lives() -> None:
    state = running("a").ended_early("0", EndedPlaceholder("FAILED"), NOW + 2, POLICY)
    assert state.running == {"a"}


def test_one_that_the_scheduler_does_not_start_has_failed_and_the_scheduler_says_why() -> None:
    state = listed(submitted("a"), {"0": waits("a", "Slurm says PartitionDown")}, NOW + 5)
    assert state.decide(USABLE, 9, POLICY, NOW + 14)[1].cancel == ()
    state, actions = state.decide(USABLE, 9, POLICY, NOW + 15)
    assert actions.cancel == ("0",)
    assert actions.submit == ()
    assert state.backoff.failures == 1
    assert "PartitionDown" in state.backoff.error


def test_one_whose_agent_never_reports_has_failed() -> None:
    state = listed(submitted("a"), {"0": runs("a")}, NOW + 1).observed(frozenset(), frozenset({"a"}), NOW + 1)
    state, actions = state.decide(USABLE, 9, POLICY, NOW + 61)
    assert actions.cancel == ("0",)
    assert state.backoff.failures == 1


def test_an_agent_over_ssh_that_does_not_report_has_failed_if_its_node_is_still_idle() -> None:
    policy = PlaceholderPolicy(patience_seconds=15, starts_at_once=True)
    assert submitted("a").missing({}, NOW + 2, policy) == []
    assert submitted("a").decide({"a": 900.0}, 9, policy, NOW + 15)[0].backoff.failures == 1
    assert submitted("a").decide({}, 9, policy, NOW + 15)[0].backoff.failures == 0, "its node was taken"


def test_a_node_that_fails_again_and_again_is_avoided_for_longer() -> None:
    state, delays = PlaceholderState(), []
    for now in (NOW, NOW + 1000, NOW + 2000, NOW + 3000):
        state = state.submission_failed("a", "bad node", now, now, POLICY)
        delays.append(state.avoided_until["a"] - now)
        state = state.submitted(f"{now}", "b", now + 1).started(f"{now}", "b", now + 2).ended(f"{now}", now + 3)
    assert delays == [30, 60, 100, 100]
    assert state.submitted("9", "a", NOW + 4000).started("9", "a", NOW + 4001).node_failures == {}


# -- what always holds -------------------------------------------------------------------------------------------------


def test_placeholders_that_are_submitted_at_once_do_not_end_at_once() -> None:
    usable = dict.fromkeys("abcdefgh", math.inf)
    _, actions = PlaceholderState().decide(usable, 8, POLICY, NOW)
    limits = sorted(seconds for _, seconds in actions.submit)
    assert limits[0] >= POLICY.longest_seconds / 2
    assert limits[-1] == POLICY.longest_seconds
    assert min(after - before for before, after in pairwise(limits)) > POLICY.longest_seconds / 40
    _, actions = PlaceholderState().decide(dict.fromkeys("abc", 600.0), 3, POLICY, NOW)
    assert {seconds for _, seconds in actions.submit} == {600.0}, "the end of the idleness is what it is"


STEPS = ["decide", "started", "preempted", "given back", "ended", "listed", "observed", "refused", "ended early"]


class History:
    """Any events in any order, as the controller would pass them on; checked after each."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.state = PlaceholderState()
        self.now = NOW
        self.number = 0
        self.next_probe = -math.inf

    def step(self) -> None:
        self.now += self.draw(st.floats(0, 20))
        known = sorted(self.state.placeholders)
        what = self.draw(st.sampled_from(STEPS))
        if what in ("decide", "refused"):
            self.decide(refused=what == "refused")
        elif what == "listed":
            found = self.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
            kinds = st.sampled_from([runs, waits, lambda node: waits(node, "PartitionDown")])
            answer = {key: self.draw(kinds)(self.state.placeholders[key].node) for key in found}
            for key in self.state.missing(answer, self.now, POLICY):
                end = EndedPlaceholder("FAILED", failed=self.draw(st.booleans()))
                self.state = self.state.ended_early(key, end, self.now, POLICY)
            self.state = listed(self.state, answer, self.now)
        elif what == "observed":
            node = self.draw(st.sampled_from("abcde"))
            held = self.state.running & {node}
            self.state = self.state.observed(held, held, self.now)
        elif known:
            identifier = self.draw(st.sampled_from(known))
            self.state = {
                "started": lambda: self.state.started(identifier, self.state.placeholders[identifier].node, self.now),
                "preempted": lambda: self.state.preempted(identifier, self.now, POLICY),
                "given back": lambda: self.state.given_back(identifier, self.now),
                "ended": lambda: self.state.ended(identifier, self.now),
                "ended early": lambda: self.state.ended_early(identifier, EndedPlaceholder("?"), self.now, POLICY),
            }[what]()
        validate_state(self.state)
        if not self.state.backoff.active:
            self.next_probe = -math.inf

    def decide(self, *, refused: bool) -> None:
        usable = self.draw(st.dictionaries(st.sampled_from("abcde"), st.floats(0, 1e4)))
        wanted = self.draw(st.integers(0, 6))
        unwanted = self.draw(st.frozensets(st.sampled_from("abcde"), max_size=2))
        usable = {node: seconds for node, seconds in usable.items() if node not in unwanted}
        before = self.state
        self.state, actions = before.decide(usable, wanted, POLICY, self.now, unwanted)
        left = [entry for entry in self.state.placeholders.values() if entry.phase is not PlaceholderPhase.ENDING]
        assert unwanted.isdisjoint(entry.node for entry in left)
        assert len(actions.cancel) == len(set(actions.cancel))
        validate_actions(before, actions, usable, wanted, POLICY, self.now)
        if actions.submit and before.backoff.active:
            assert self.now >= self.next_probe, "at most one probe per delay"
            self.next_probe = self.now + POLICY.backoff.delay(before.backoff.failures)
        for node, _ in actions.submit:
            if refused:
                self.state = self.state.submission_failed(node, "refused", self.now, self.now, POLICY)
                return
            self.number += 1
            self.state = self.state.submitted(str(self.number), node, self.now)


@given(st.data())
def test_what_always_holds(data: st.DataObject) -> None:
    history = History(data.draw)
    for _ in range(data.draw(st.integers(0, 25))):
        history.step()
    by_node = [entry.node for entry in history.state.placeholders.values()]
    assert len(by_node) == len(set(by_node)), "no node has two placeholders of ours"
