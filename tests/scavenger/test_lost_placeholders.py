"""Agents whose placeholders the scheduler has forgotten."""

from __future__ import annotations

import pytest

from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholders import (
    EndedPlaceholder,
    ListedPlaceholder,
    LostPlaceholders,
    PlaceholderPhase,
    find_lost,
    find_unlisted,
)

AGENTS = {"a": "1", "b": "2"}
RUNS = {identifier: ListedPlaceholder(node, PlaceholderPhase.RUNNING) for node, identifier in AGENTS.items()}
GONE = EndedPlaceholder("the scheduler no longer knows it")
NOW = 1000.0


def test_agents_of_listed_placeholders_stay() -> None:
    assert find_unlisted(AGENTS, RUNS) == []
    assert find_lost(AGENTS, RUNS, {}, {}) == LostPlaceholders()


def test_an_agent_leaves_for_the_end_of_its_placeholder_that_the_scheduler_tells() -> None:
    listed = {"2": RUNS["2"]}
    assert find_unlisted(AGENTS, listed) == ["1"]
    assert find_lost(AGENTS, listed, {"1": GONE}, {}).reasons == {"a": GONE.reason}
    assert not find_lost(AGENTS, listed, {}, {}).reasons, "it has not ended: it is suspended, for example"


def test_a_placeholder_that_waits_to_start_is_doubted_once_and_lost_the_second_time() -> None:
    listed = RUNS | {"1": ListedPlaceholder("a", PlaceholderPhase.PENDING)}
    first = find_lost(AGENTS, listed, {}, {})
    assert (first.reasons, first.doubted) == ({}, {"a": "1"})
    second = find_lost(AGENTS, listed, {}, first.doubted)
    assert second.pending == {"a": "1"}
    assert set(second.reasons) == {"a"}
    assert not find_lost(
        AGENTS | {"a": "3"}, listed | {"3": ListedPlaceholder("a", PlaceholderPhase.PENDING)}, {}, first.doubted
    ).reasons


@pytest.mark.parametrize(("node", "lost"), [("c", True), ("a", False), ("", False)])
def test_an_identifier_on_another_node_is_not_that_of_the_agent(node: str, lost: bool) -> None:
    listed = RUNS | {"1": ListedPlaceholder(node, PlaceholderPhase.RUNNING)}
    assert ("a" in find_lost(AGENTS, listed, {}, {}).reasons) is lost


def test_an_identifier_that_is_given_again_begins_anew() -> None:
    state = PlaceholderState().submitted("1", "a", NOW).started("1", "a", NOW).submitted("1", "b", NOW + 9, NOW + 99)
    entry = state.placeholders["1"]
    assert (entry.node, entry.phase, entry.reported, entry.since) == ("b", PlaceholderPhase.PENDING, False, NOW + 9)
    assert not state.may_be_on("1", "a")
    assert state.may_be_on("1", "b")
    assert state.may_be_on("2", "a")
