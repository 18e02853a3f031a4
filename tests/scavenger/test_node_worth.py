"""Nodes that are worth holding: as many as can be given to jobs that they suit, the first ones first."""

from __future__ import annotations

from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds, suits
from malletrain.scavenger.machine.node_worth import NodeWorth
from malletrain.scavenger.machine.observations import NodeFacts

A100, V100, IB = NodeNeeds(gpu="a100"), NodeNeeds(gpu="v100"), NodeNeeds(constraint="ib")
BIG, WIDE = NodeNeeds(memory_mib=200), NodeNeeds(gpus=2, cores=9)
FACTS = st.sampled_from(
    [
        NodeFacts(gpu_type="a100", gpus=4),
        NodeFacts(gpu_type="a100", gpus=4, features=("ib",)),
        NodeFacts(gpu_type="v100", gpus=4),
        NodeFacts(gpu_type="v100", gpus=2, cpus=16, memory_mib=201),
        NodeFacts(features=("ib",), memory_mib=300),
        NodeFacts(),
    ]
)
DEMANDS = st.dictionaries(st.sampled_from([NO_NEEDS, A100, V100, IB, BIG, WIDE]), st.integers(0, 2), max_size=3)


def can_all_be_used(nodes: tuple[str, ...], demands: dict[NodeNeeds, int], facts: dict[str, NodeFacts]) -> bool:
    places = [needs for needs, count in demands.items() for _ in range(count)]
    return any(
        all(suits(needs, node, facts[node].traits) for node, needs in zip(nodes, chosen, strict=True))
        for chosen in permutations(places, len(nodes))
    )


@settings(deadline=None, max_examples=150)
@given(demands=DEMANDS, kinds=st.lists(FACTS, max_size=5), held=st.integers(0, 5))
def test_no_larger_set_could_be_used(demands: dict[NodeNeeds, int], kinds: list[NodeFacts], held: int) -> None:
    facts = {f"n{number}": about for number, about in enumerate(kinds)}
    worth, names = NodeWorth(demands, facts), list(facts)
    present, candidates = names[:held], names[held:]
    used = set(present) - worth.useless(present) | worth.useful(present, candidates)
    assert can_all_be_used(tuple(used), demands, facts)
    for larger in combinations(names, len(used) + 1):
        assert not can_all_be_used(larger, demands, facts)


def test_of_equal_nodes_the_first_are_of_use() -> None:
    worth = NodeWorth({A100: 1, NO_NEEDS: 1}, {"c1": NodeFacts(), "c2": NodeFacts(), "g1": NodeFacts("", "a100", 4)})
    assert worth.useful((), ["c2", "c1", "g1"]) == {"c2", "g1"}
    assert worth.useless(["c1", "c2", "g1"]) == {"c2"}
