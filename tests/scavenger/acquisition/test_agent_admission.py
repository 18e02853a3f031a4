"""As whom an agent is let in. Pure."""

from __future__ import annotations

import pytest

from malletrain.scavenger.acquisition.agent_registry import UNSEEN, NodeHistory, RegisteredAgent, refusal_of
from malletrain.tls.names import PeerNode, node_name


def agent(node: str = "n1", shown: PeerNode | None = None, placeholder: str = "7") -> RegisteredAgent:
    return RegisteredAgent(node, "10.0.0.1:5", placeholder, certificate=shown)


def of(node: str, number: int | None = None) -> PeerNode:
    return PeerNode(node_name(node), number)


PRESENT = agent(shown=of("n1", 5))
OTHER = agent("n2", of("n2", 9), "8")


@pytest.mark.parametrize(
    ("entry", "history", "present", "shared", "why"),
    [
        (agent(shown=of("n1", 1)), UNSEEN, [], False, ""),
        (agent(shown=of("n1")), UNSEEN, [OTHER], False, ""),
        (agent(shown=of("n2", 1)), UNSEEN, [], True, "another node than n1"),
        (agent(shown=PeerNode("", 1)), UNSEEN, [], True, "another node than n1"),
        (agent("N1", of("n1", 1)), UNSEEN, [], True, "another node than N1"),
        # Placeholders.
        (agent(shown=of("n1", 5)), NodeHistory(5, True), [PRESENT], False, ""),
        (agent(shown=of("n1", 6)), NodeHistory(5, True), [PRESENT], False, ""),
        (agent(shown=of("n1", 4)), NodeHistory(5, True), [PRESENT], False, "an earlier placeholder on n1"),
        (agent(shown=of("n1", 4)), NodeHistory(5, True), [], False, "an earlier placeholder on n1"),
        (agent(shown=of("n1")), NodeHistory(5, True), [PRESENT], False, "the agent of a placeholder is on n1"),
        (agent(shown=of("n1")), NodeHistory(5, True), [agent(shown=of("n1"))], False, ""),
        (agent(shown=of("n1", 1), placeholder="8"), UNSEEN, [OTHER], False, "that of another node's agent"),
        # What agents of 0.1 share.
        (agent(), UNSEEN, [OTHER], True, ""),
        (agent(), UNSEEN, [agent()], True, ""),
        (agent(), UNSEEN, [], False, "names no node, as that which all agents of version 0.1 shared"),
        (agent(), NodeHistory(0, True), [], True, "have one of their own"),
        (agent(placeholder="8"), UNSEEN, [OTHER], True, "that of another node's agent"),
    ],
)
def test_who_is_let_in(
    entry: RegisteredAgent, history: NodeHistory, present: list[RegisteredAgent], shared: bool, why: str
) -> None:
    refusal = refusal_of(entry, history, present, accepts_shared=shared)
    assert (why in refusal) if why else refusal == ""


def test_where_no_placeholder_is_the_certificate_of_one_has_outlived_it() -> None:
    told = refusal_of(agent(shown=of("n1", 5)), UNSEEN, [], accepts_shared=False, is_expected=False)
    assert told == "the certificate is that of a placeholder, and none is on n1"
    assert not refusal_of(agent(shown=of("n1")), UNSEEN, [], accepts_shared=False, is_expected=False), "made by hand"


def test_what_is_remembered_of_a_node() -> None:
    history = UNSEEN.after(agent())
    assert history == UNSEEN
    history = history.after(agent(shown=of("n1")))
    assert history == NodeHistory(0, has_own=True)
    history = history.after(agent(shown=of("n1", 7))).after(agent(shown=of("n1", 7)))
    assert history == NodeHistory(7, has_own=True)


def test_an_agent_of_0_1_has_no_name_of_its_own() -> None:
    assert (agent().name, agent(shown=of("n1", 3)).name) == ("", node_name("n1"))
