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
    as_asked,
    check_needs,
    in_words,
    needs_of,
    size_in_words,
    suits,
)

A100 = NodeTraits("main/a100x4", "a100", ("ib", "big"), 4, 64, 515000, 81920)
V100 = NodeTraits("old/v100x2", "v100", ("roce",), 2, 32, 191000, 32768)
MIXED = NodeTraits("main/a100+v100x4", "a100+v100", (), 4)
CPU = NodeTraits("main", "", (), 0, 128, 1031000)


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
        (NodeNeeds(gpus=1), [A100, V100, MIXED]),
        (NodeNeeds(gpus=4), [A100, MIXED]),
        (NodeNeeds(gpus=5), []),
        (NodeNeeds(cores=32), [A100, V100, CPU]),
        (NodeNeeds(cores=65), [CPU]),
        (NodeNeeds(memory_mib=191000), [A100, V100, CPU]),
        (NodeNeeds(memory_mib=191001), [A100, CPU]),
        (NodeNeeds(gpu_memory_mib=1), [A100, V100]),
        (NodeNeeds(gpu_memory_mib=40960), [A100]),
        (NodeNeeds(gpu="v100", gpu_memory_mib=40960), []),
        (NodeNeeds(gpus=2, cores=32, memory_mib=100000, gpu_memory_mib=32768), [A100, V100]),
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
        (NodeNeeds(gpu_memory_mib=-1), "gpu_memory_mib"),
        (NodeNeeds(gpu_memory_mib=(1 << 30) + 1), "gpu_memory_mib"),
        (NodeNeeds(gpus=1025), "gpus"),
        (NodeNeeds(cores=(1 << 20) + 1), "cores"),
        (NodeNeeds(memory_mib=-(1 << 63)), "memory_mib"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_its_field(needs: NodeNeeds, field: str) -> None:
    with pytest.raises(NeedError) as error:
        check_needs(needs)
    assert error.value.field == field


@pytest.mark.parametrize(
    "needs",
    [
        NO_NEEDS,
        NodeNeeds("a100", "ib&big", "main", ("n1", "n2")),
        NodeNeeds(constraint="cpu:amd-7763|x_1.2"),
        NodeNeeds(gpu_memory_mib=1 << 30, gpus=1024, cores=1 << 20, memory_mib=1 << 30),
    ],
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
            gpu_memory_mib=st.sampled_from([0, 0, 32768, 40960]),
            gpus=st.sampled_from([0, 0, 3]),
            cores=st.sampled_from([0, 0, 32, 65]),
            memory_mib=st.sampled_from([0, 0, 200000]),
        )
    ),
)
def test_a_census_counts_what_one_by_one_suits(nodes: dict[str, NodeTraits], asked: list[NodeNeeds]) -> None:
    for census in (TraitCensus(nodes), TraitCensus(as_asked(nodes, asked))):
        assert len(census) == len(nodes)
        for needs in asked:
            assert census.count(needs) == sum(suits(needs, name, traits) for name, traits in nodes.items())
        kinds = {name: barred for barred, names in census.kinds(asked).items() for name in names}
        for name, traits in nodes.items():
            barred = tuple(index for index, needs in enumerate(asked) if not suits(needs, name, traits))
            assert kinds.get(name, ()) == barred


def test_amounts_count_only_as_far_as_they_are_asked_for() -> None:
    nodes = {f"n{mib}": NodeTraits(cores=64, memory_mib=mib) for mib in (99, 100, 101, 199, 200, 300)}
    found = as_asked(nodes, [NO_NEEDS, NodeNeeds(memory_mib=100), NodeNeeds(memory_mib=200, gpus=2)])
    assert [traits.memory_mib for traits in found.values()] == [0, 100, 100, 100, 200, 200]
    assert {(traits.cores, traits.gpus) for traits in found.values()} == {(0, 0)}


def test_nodes_whose_amounts_are_not_known_are_counted() -> None:
    census = TraitCensus({"a": A100, "v": V100, "m": MIXED, "c": CPU})
    unknown = {
        NodeNeeds(gpu_memory_mib=1): 1,  # a node without GPUs has none for certain
        NodeNeeds(cores=1): 1,
        NodeNeeds(memory_mib=1): 1,
        NodeNeeds(gpus=1): 0,
        NodeNeeds(gpu="h100"): 0,
    }
    assert {needs: census.unknown(needs) for needs in unknown} == unknown


@pytest.mark.parametrize(
    ("mib", "words"),
    [(1, "1 MiB"), (1500, "1500 MiB"), (40960, "40 GiB"), (1 << 20, "1 TiB"), ((1 << 20) + 1024, "1025 GiB")],
)
def test_sizes_in_words_are_exact(mib: int, words: str) -> None:
    assert size_in_words(mib) == words


def test_each_need_is_told_by_itself() -> None:
    needs = NodeNeeds("a100", "ib&big", "main", ("n1", "n2"))
    assert in_words(needs) == "pool main, GPU a100, feature ib, feature big, none of 2 excluded nodes"
    assert not any(suits(need.part, "n1", V100) for need in needs_of(needs))
    assert all(suits(need.part, "n3", A100) for need in needs_of(needs))
    assert in_words(NodeNeeds(constraint="ib|roce", excluded_nodes=("n1",))) == "feature ib|roce, not n1"
    amounts = NodeNeeds("a100", "ib", gpu_memory_mib=40960, gpus=4, cores=1, memory_mib=1 << 18)
    assert in_words(amounts) == (
        "GPU a100, GPUs of at least 40 GiB, at least 4 GPUs, at least 1 core, at least 256 GiB of memory, feature ib"
    )
