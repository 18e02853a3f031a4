"""Names in certificates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.tls.names import PeerNode, job_of, name_of, node_name, node_of, placeholder_name, role_of

_NODES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}\Z")
ROLE = name_of("agent")


@given(_NODES)
def test_a_nodes_name_is_a_dns_name_whatever_the_node_is_called(node: str) -> None:
    name = node_name(node)
    label, _, domain = name.partition(".")
    assert domain == "node.malletrain.internal"
    assert len(label) == 32
    assert set(label) <= set("0123456789abcdef")
    assert node_of([ROLE, name]) == PeerNode(name)
    assert (role_of(name), job_of(name)) == (None, None)


@given(_NODES, _NODES)
def test_two_nodes_have_two_names(one: str, other: str) -> None:
    assert (node_name(one) == node_name(other)) == (one == other)


def test_names_that_differ_in_case_only_are_two_nodes() -> None:
    assert node_name("N1") != node_name("n1")


@given(st.integers(1, 10**18))
def test_a_placeholder_is_known_by_its_number(number: int) -> None:
    found = node_of([ROLE, node_name("n1"), placeholder_name(number)])
    assert found == PeerNode(node_name("n1"), number)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        ([ROLE], None),
        ([ROLE, placeholder_name(7)], None),
        ([ROLE, node_name("n1"), node_name("n2")], PeerNode("")),
        ([ROLE, node_name("n1"), placeholder_name(7), placeholder_name(8)], PeerNode("", 8)),
        ([ROLE, node_name("n1"), "p0.placeholder.malletrain.internal"], PeerNode(node_name("n1"))),
        ([ROLE, node_name("n1"), "p-1.placeholder.malletrain.internal"], PeerNode(node_name("n1"))),
    ],
)
def test_names_that_make_no_sense_are_of_no_node(names: list[str], found: PeerNode | None) -> None:
    assert node_of(names) == found
