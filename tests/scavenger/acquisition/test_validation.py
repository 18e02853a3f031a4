"""Broken invariants are found, and the error names the node and what happened there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.runtime.errors import InvariantError
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholder_validation import validate_actions, validate_held, validate_state
from malletrain.scavenger.machine.placeholders import (
    Placeholder,
    PlaceholderActions,
    PlaceholderPhase,
    PlaceholderPolicy,
)
from malletrain.scavenger.machine.submission_backoff import SubmissionBackoff

NOW = 1000.0
POLICY = PlaceholderPolicy(most_pending=2)
SOUND = PlaceholderState().submitted("1", "a", NOW).started("1", "a", NOW + 2)
FAILED = PlaceholderState().submission_failed("a", "Invalid account", NOW, NOW, POLICY)


def with_entry(state: PlaceholderState, key: str, entry: Placeholder) -> PlaceholderState:
    return replace(state, placeholders={**state.placeholders, key: entry})


def test_what_is_sound_passes() -> None:
    for state in (PlaceholderState(), SOUND, FAILED, SOUND.preempted("1", NOW + 3, POLICY)):
        validate_state(state)
    validate_actions(SOUND, PlaceholderActions((("b", 300.0),)), {"b": 300.0}, 2, POLICY, NOW)
    validate_held({"a": NOW}, {"a": "10.0.0.1:5"}, {"a": "1"}, SOUND)


def test_the_error_tells_the_story_of_the_node() -> None:
    broken = SOUND.submitted("2", "b", NOW + 3).submitted("3", "a", NOW + 4)
    with pytest.raises(InvariantError) as caught:
        validate_state(broken)
    lines = str(caught.value).splitlines()
    assert lines[0] == "node a: 2 placeholders were submitted for one node. Its story:"
    assert [line.split(maxsplit=1)[1] for line in lines[1:]] == ["1 submitted", "1: agent reported", "3 submitted"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (with_entry(SOUND, "2", Placeholder("9", "b", NOW)), "placeholder 9 is kept as 2"),
        (with_entry(SOUND, "2", Placeholder("2", "b", NOW, ending_since=NOW)), "2 was told to end, and is PENDING"),
        (with_entry(SOUND, "2", Placeholder("2", "b", NOW, reported=True)), "the agent of 2 has reported"),
        (replace(SOUND, backoff=SubmissionBackoff(0, error="left over")), "the back-off contradicts itself"),
        (replace(SOUND, backoff=SubmissionBackoff(2)), "the back-off contradicts itself"),
        (replace(FAILED, backoff=replace(FAILED.backoff, retry_at=0.0)), "the back-off contradicts itself"),
        (FAILED.submitted("1", "b", NOW + 9).submitted("2", "c", NOW + 9), "more than one probe after a failure: 1, 2"),
        (replace(SOUND, node_failures={"a": 0}), "0 failures are counted"),
    ],
)
def test_contradictions_of_the_state(state: PlaceholderState, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        validate_state(state)


USABLE = {"a": 900.0, "b": 900.0, "c": 900.0, "d": 900.0, "e": 50.0}
PENDING = SOUND.submitted("2", "b", NOW)


@pytest.mark.parametrize(
    ("before", "submit", "cancel", "message"),
    [
        (SOUND, (("a", 300.0),), (), "node a: a second placeholder"),
        (SOUND, (("b", 300.0), ("b", 300.0)), (), "node b: a second placeholder"),
        (SOUND.preempted("1", NOW - 99, POLICY), (("a", 300.0),), (), "node a: a second placeholder"),
        (SOUND.preempted("1", NOW, POLICY), (("b", 300.0),), (), "just after the scheduler took a node back"),
        (FAILED, (("a", 300.0),), (), "a node that is avoided"),
        (FAILED, (("b", 300.0),), (), "during the back-off"),
        (SOUND, (("z", 300.0),), (), "not idle for long enough"),
        (SOUND, (("e", 50.0),), (), "not idle for long enough"),
        (SOUND, (("b", 901.0),), (), "a time limit of 901 s is too long"),
        (SOUND, (("b", 300.0), ("c", 300.0), ("d", 300.0)), (), "4 placeholders are held or wait, 3 are wanted"),
        (PENDING, (("c", 300.0), ("d", 300.0)), ("1",), "3 placeholders wait, at most 2 may"),
        (SOUND, (), ("7",), "7 is cancelled and not known"),
    ],
)
def test_contradictions_of_a_decision(
    before: PlaceholderState, submit: tuple[tuple[str, float], ...], cancel: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvariantError, match=message):
        validate_actions(before, PlaceholderActions(submit, cancel), USABLE, 3, POLICY, NOW)


def test_a_node_that_has_joined_has_an_agent_in_a_placeholder_that_is_known() -> None:
    with pytest.raises(InvariantError, match="node b: it has joined, but has no agent"):
        validate_held({"b": NOW}, {"a": "10.0.0.1:5"}, {"a": "1"}, SOUND)
    with pytest.raises(InvariantError, match="node b: it has joined, but the placeholder of its agent is not known"):
        validate_held({"b": NOW}, {"b": "10.0.0.1:5"}, {"b": "1"}, SOUND)


def test_a_placeholder_of_an_earlier_life_may_share_a_node() -> None:
    phase = PlaceholderPhase.RUNNING
    validate_state(with_entry(SOUND, "7", Placeholder("7", "a", NOW, phase, adopted=True)))
