from __future__ import annotations

from itertools import islice, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.fleet.assignment import assign_gpus, assignment_score
from malletrain.fleet.placement import place

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def as_published(counts: list[int], per_node: int) -> tuple[list[int], int]:
    """Members in the order in which they are put, and how many orders were tried, step by step."""
    put = [member for member, count in enumerate(counts) if count % per_node == 0]
    unpaired: list[int] = []
    for member, count in enumerate(counts):
        if count % per_node:
            partners = [other for other in unpaired if counts[other] % per_node == -count % per_node]
            if partners:
                put += [member, partners[0]]
                unpaired.remove(partners[0])
            else:
                unpaired.append(member)
    orders = list(islice(permutations(unpaired), 1024)) if unpaired else []
    best = min(orders, key=lambda order: round(score_of(counts, [*put, *order], per_node), 9), default=())
    return [*put, *best], len(orders)


def score_of(counts: list[int], order: list[int], per_node: int) -> float:
    start, score = 0, 0.0
    for member in order:
        score += len({gpu // per_node for gpu in range(start, start + counts[member])}) / counts[member]
        start += counts[member]
    return score


@settings(max_examples=60)
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=12), per_node=st.integers(1, 8))
def test_members_are_put_as_published(counts: list[int], per_node: int) -> None:
    found = assign_gpus(counts, per_node)
    order, tried = as_published(counts, per_node)
    assert sorted(range(len(counts)), key=lambda member: found.gpus[member]) == order
    assert [len(own) for own in found.gpus] == counts
    assert [gpu for member in order for gpu in found.gpus[member]] == list(range(sum(counts))), "once, without gaps"
    assert found.score == pytest.approx(score_of(counts, order, per_node))
    assert found.orders_tried == tried


def test_pairs_fill_nodes_and_the_first_partner_counts() -> None:
    # 5 and 3 fill two nodes of four; the second 3 waits, though it would fit as well.
    found = assign_gpus([3, 3, 4, 5], 4)
    assert found.gpus[2] == (0, 1, 2, 3)
    assert found.gpus[3] == (4, 5, 6, 7, 8)
    assert found.gpus[0] == (9, 10, 11)
    assert found.gpus[1] == (12, 13, 14)
    assert found.orders_tried == 1


def test_the_first_of_the_best_orders_counts() -> None:
    # In the order of the flotilla the member with two GPUs is on two nodes: 1/3 + 1 + 1/3 + 1/3. Third, or first, it is
    # on one: 1/3 + 2/3 + 1/2 + 1/3.
    found = assign_gpus([3, 2, 3, 3], 4)
    assert found.orders_tried == 24
    assert found.score == pytest.approx(11 / 6)
    assert found.gpus == ((0, 1, 2), (6, 7), (3, 4, 5), (8, 9, 10))


def test_seven_without_partners_try_1024_orders() -> None:
    assert assign_gpus([1] * 7, 4).orders_tried == 1024


def test_a_member_on_whole_nodes_comes_first() -> None:
    assert assign_gpus([1, 8], 4).gpus == ((8,), tuple(range(8)))


@given(counts=COUNTS, per_node=st.integers(1, 4), spare=st.integers(0, 5))
def test_best_fit_is_never_worse_than_one_after_the_other(counts: list[int], per_node: int, spare: int) -> None:
    total = -(-(sum(counts) + spare) // per_node)
    found = place(counts, {f"n{i}": per_node for i in range(total)})
    assert found.score <= assign_gpus(counts, per_node).score + 1e-9


@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_best_fit_on_nodes_that_differ(data: st.DataObject, sizes: list[int]) -> None:
    counts: list[int] = []
    while len(counts) < 6 and sum(counts) < sum(sizes) and (not counts or data.draw(st.booleans())):
        counts.append(data.draw(st.integers(1, sum(sizes) - sum(counts))))
    nodes = {f"n{i}": size for i, size in enumerate(sizes)}
    found = place(counts, nodes)
    every = [gpu for own in found.gpus for gpu in own]
    assert len(set(every)) == len(every) == sum(counts)
    assert all(0 <= number < nodes[name] for name, number in every)
    assert found.score == pytest.approx(sum(len({n for n, _ in own}) / len(own) for own in found.gpus))
    # What is held and as good as anything stays.
    again = place(counts, nodes, found.gpus)
    assert (again.gpus, again.moved) == (found.gpus, 0)


def test_a_gap_is_left_where_it_saves_a_node() -> None:
    # Without a gap the second member would be on two nodes.
    assert assign_gpus([3, 3], 4).score == pytest.approx(1.0)
    found = place([3, 3], {"n0": 4, "n1": 4})
    assert found.score == pytest.approx(2 / 3)
    # On nodes that differ, the small member leaves the large node to the large one.
    assert place([2, 4], {"small": 2, "large": 4}).score == pytest.approx(1 / 2 + 1 / 4)


def test_members_whose_gpus_stay_are_not_moved() -> None:
    held = (frozenset({("n0", 0), ("n0", 1)}), frozenset({("n1", 0)}), frozenset({("n2", 1), ("n2", 0)}))
    nodes = {"n1": 2, "n2": 2}
    # n0 has left: its member shrinks to the free GPU of n1, the others go on.
    found = place([1, 1, 2], nodes, held)
    assert found.gpus[1:] == held[1:]
    assert found.gpus[0] == {("n1", 1)}
    assert found.moved == 1


def test_the_score_of_numbers() -> None:
    assert assignment_score([(3, 4), (0,)], 4) == 2.0
