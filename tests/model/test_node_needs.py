"""Which nodes suit a job, and what of its needs is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.model.node_needs import (
    NO_NEEDS,
    NeedError,
    NodeNeeds,
    NodeTraits,
    TraitCensus,
    check_needs,
    in_words,
    needs_of,
    suits,
)

A100 = NodeTraits("main/a100x4", "a100", ("ib", "big"))
V100 = NodeTraits("old/v100x2", "v100", ("roce",))
MIXED = NodeTraits("main/a100+v100x4", "a100+v100")
CPU = NodeTraits("main")


@pytest.mark.parametrize(
    ("needs", "suitable"),
    [
        (NO_NEEDS, [A100, V100, MIXED, CPU]),
        (NodeNeeds(gpu="a100"), [A100]),
        (NodeNeeds(gpu="A100"), [A100]),
        (NodeNeeds(gpu="gpu"), [A100, V100, MIXED]),
        (NodeNeeds(constraint="ib"), [A100]),
        (NodeNeeds(constraint="ib&big"), [A100]),
        (NodeNeeds(constraint="ib & roce"), []),
        (NodeNeeds(constraint="ib|roce"), [A100, V100]),
        (NodeNeeds(pool="main"), [A100, MIXED, CPU]),
        (NodeNeeds(pool="main/a100x4"), [A100]),
        (NodeNeeds(pool="mai"), []),
        (NodeNeeds(excluded_nodes=("n1",)), []),
        (NodeNeeds(excluded_nodes=("n2",)), [A100, V100, MIXED, CPU]),
        (NodeNeeds(gpu="a100", constraint="roce"), []),
    ],
)
def test_a_node_suits_a_job_that_needs_no_more(needs: NodeNeeds, suitable: list[NodeTraits]) -> None:
    assert [traits for traits in (A100, V100, MIXED, CPU) if suits(needs, "n1", traits)] == suitable


@pytest.mark.parametrize(
    ("needs", "field"),
    [
        (NodeNeeds(gpu="a 100"), "gpu"),
        (NodeNeeds(gpu="x" * 129), "gpu"),
        (NodeNeeds(pool="a\nb"), "pool"),
        (NodeNeeds(constraint="a&b|c"), "constraint"),
        (NodeNeeds(constraint="a&"), "constraint"),
        (NodeNeeds(constraint="&"), "constraint"),
        (NodeNeeds(constraint="[a|b]"), "constraint"),
        (NodeNeeds(constraint="a*2"), "constraint"),
        (NodeNeeds(constraint="a b"), "constraint"),
        (NodeNeeds(constraint="a\0"), "constraint"),
        (NodeNeeds(constraint="a" * 513), "constraint"),
        (NodeNeeds(constraint="&".join("abcdefghijklmnopq")), "constraint"),
        (NodeNeeds(excluded_nodes=("n1", " ")), "excluded_nodes[1]"),
        (NodeNeeds(excluded_nodes=("n1 ",)), "excluded_nodes[0]"),
        (NodeNeeds(excluded_nodes=tuple(f"n{number}" for number in range(257))), "excluded_nodes"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_its_field(needs: NodeNeeds, field: str) -> None:
    with pytest.raises(NeedError) as error:
        check_needs(needs)
    assert error.value.field == field


@pytest.mark.parametrize(
    "needs", [NO_NEEDS, NodeNeeds("a100", "ib&big", "main", ("n1", "n2")), NodeNeeds(constraint="cpu:amd-7763|x_1.2")]
)
def test_what_can_be_meant_is_not_refused(needs: NodeNeeds) -> None:
    check_needs(needs)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([A100, V100, MIXED, CPU])),
    st.lists(
        st.builds(
            NodeNeeds,
            gpu=st.sampled_from(["", "a100", "gpu"]),
            constraint=st.sampled_from(["", "ib", "ib|roce"]),
            excluded_nodes=st.sets(st.sampled_from("abcxyz")).map(tuple),
        )
    ),
)
def test_a_census_counts_what_one_by_one_suits(nodes: dict[str, NodeTraits], asked: list[NodeNeeds]) -> None:
    census = TraitCensus(nodes)
    assert len(census) == len(nodes)
    for needs in asked:
        assert census.count(needs) == sum(suits(needs, name, traits) for name, traits in nodes.items())
    kinds = {name: barred for barred, names in census.kinds(asked).items() for name in names}
    for name, traits in nodes.items():
        barred = tuple(index for index, needs in enumerate(asked) if not suits(needs, name, traits))
        assert kinds.get(name, ()) == barred


def test_each_need_is_told_by_itself() -> None:
    needs = NodeNeeds("a100", "ib&big", "main", ("n1", "n2"))
    assert in_words(needs) == "pool main, GPU a100, feature ib, feature big, none of 2 excluded nodes"
    assert not any(suits(need.part, "n1", V100) for need in needs_of(needs))
    assert all(suits(need.part, "n3", A100) for need in needs_of(needs))
    assert in_words(NodeNeeds(constraint="ib|roce", excluded_nodes=("n1",))) == "feature ib|roce, not n1"
