"""Cells of NAS-Bench-101: what is drawn lies in the space, and what a network takes is counted rightly."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.nasbench.cost import PUBLISHED, SMALL, Size, cost
from examples.nasbench.pace import Machine, Pace, pace, paced_seconds
from examples.nasbench.space import MAX_EDGES, MAX_VERTICES, Cell, Operation, between, channels, pruned, sample_cell

cells = st.integers(0, 2**32).map(lambda seed: sample_cell(random.Random(seed)))
pairs = st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] < pair[1])
graphs = st.sets(pairs, max_size=14).map(sorted)
operations = st.lists(st.sampled_from(Operation), min_size=5, max_size=5)


def reachable(edges: list[tuple[int, int]], start: int) -> set[int]:
    """Naively: all vertices that edges lead to."""
    found = {start}
    while more := {b for a, b in edges if a in found} - found:
        found |= more
    return found


@settings(max_examples=40)
@given(cells)
def test_what_is_drawn_is_a_cell_of_the_space(cell: Cell) -> None:
    assert 2 <= cell.vertices <= MAX_VERTICES
    assert 1 <= len(cell.edges) <= MAX_EDGES
    assert all(a < b for a, b in cell.edges)
    backward = [(cell.vertices - 1 - b, cell.vertices - 1 - a) for a, b in cell.edges]
    everyone = set(range(cell.vertices))
    assert reachable(list(cell.edges), 0) == everyone
    assert reachable(backward, 0) == everyone
    assert Cell(cell.edges, cell.operations) == cell


@given(graphs)
def test_between_agrees_with_a_naive_search(edges: list[tuple[int, int]]) -> None:
    forward = reachable(edges, 0)
    expected = {v for v in forward if 6 in reachable(edges, v)}
    assert between(edges, 6) == expected


@given(graphs, operations)
def test_pruning_keeps_the_operations_of_what_is_left(edges: list[tuple[int, int]], ops: list[Operation]) -> None:
    kept = sorted(between(edges, 6))
    left = [(a, b) for a, b in edges if a in kept and b in kept]
    cell = pruned(edges, ops)
    if not kept or len(left) > MAX_EDGES:
        assert cell is None
    else:
        assert cell is not None
        assert [(kept[a], kept[b]) for a, b in cell.edges] == left
        assert list(cell.operations) == [ops[vertex - 1] for vertex in kept[1:-1]]


def test_the_same_seed_draws_the_same_cell() -> None:
    assert [sample_cell(random.Random(7)) for _ in range(2)] == [sample_cell(random.Random(7))] * 2
    drawn = [sample_cell(random.Random(seed)) for seed in range(40)]
    assert len({str(cell) for cell in drawn}) > 35
    assert Counter(cell.vertices for cell in drawn)[MAX_VERTICES] > 25


@settings(max_examples=30)
@given(cells, st.integers(1, 64), st.integers(5, 64))
def test_channels_of_what_is_joined_add_up(cell: Cell, inputs: int, outputs: int) -> None:
    found = channels(cell, inputs, outputs)
    joined = [found[source] for source in cell.sources(cell.vertices - 1) if source]
    assert (found[0], found[-1]) == (inputs, outputs)
    assert not joined or sum(joined) == outputs
    assert all(width > 0 for width in found)
    assert max(joined, default=0) - min(joined, default=0) <= 1
    # Nothing has to grow on its way: what a vertex gets is at least as wide as itself.
    assert all(found[a] >= found[b] for a, b in cell.edges if a > 0 and b < cell.vertices - 1)


CONV = Operation.CONV_3X3


@pytest.mark.parametrize(
    ("edges", "ops", "words"),
    [
        ((), (), "path"),
        (((0, 1), (1, 0)), (), "ascending"),
        (((0, 2), (0, 1), (1, 2)), (CONV,), "ascending"),
        (((0, 1), (0, 1)), (), "ascending"),
        (((0, 1), (1, 3)), (CONV,), "ascending"),
        (((0, 2),), (CONV,), "path"),
        (((0, 1), (0, 2), (1, 3)), (CONV, CONV), "path"),
        (((0, 1), (1, 7)), (CONV,) * 6, "operations"),
        (tuple((a, b) for a in range(5) for b in range(a + 1, 5)), (CONV,) * 3, "edges: expected at most 9"),
    ],
)
def test_what_is_no_cell_is_refused(edges: tuple[tuple[int, int], ...], ops: tuple[Operation, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Cell(edges, ops)


def test_too_few_channels_are_refused() -> None:
    cell = Cell(((0, 1), (0, 2), (1, 3), (2, 3)), (CONV, CONV))
    with pytest.raises(ValueError, match="a channel for each of 2"):
        channels(cell, 4, 1)


def test_cost_by_hand() -> None:
    # One 3x3 convolution: the stem, then per cell a projection and the convolution, then the classifier.
    cell = Cell(((0, 1), (1, 2)), (CONV,))
    found = cost(cell, Size(width=4, stacks=1, cells=1), 8)
    stem, projection, convolution = 9 * 3 * 4, 4 * 4, 9 * 4 * 4
    assert found.weights == stem + projection + convolution + 3 * 2 * 4 + 10 * 5
    assert found.multiply_adds == 64 * (stem + projection + convolution) + 10 * 4
    assert found.written == 64 * 3 * 3 * 4 + 10


def test_the_extremes_have_the_weights_that_the_benchmark_reports() -> None:
    """NAS-Bench-101's `trainable_parameters` go from 227,274 to 49,979,274."""
    chain = [(vertex, vertex + 1) for vertex in range(6)]
    largest = Cell(tuple(sorted([*chain, (0, 2), (0, 3), (0, 4)])), (CONV,) * 5)
    fan = (*((1, vertex) for vertex in range(2, 6)), *((vertex, 6) for vertex in range(2, 6)))
    smallest = Cell(((0, 1), *fan), (Operation.POOL_3X3,) * 5)
    assert cost(largest).weights == 49_979_274
    assert cost(smallest).weights == 227_274
    assert cost(largest, SMALL, 16).weights < 1e5


@settings(max_examples=20)
@given(cells, st.integers(1, 63))
def test_more_workers_process_more_but_never_more_than_their_share(cell: Cell, workers: int) -> None:
    found = pace(cost(cell, PUBLISHED), Machine(1e13, 7e11, 1e10), 8)
    assert found.rate(workers, 8) < found.rate(workers + 1, 8) <= (workers + 1) * found.rate(1, 8)


def test_pace_by_hand() -> None:
    assert paced_seconds(0.1, 0.4, 1) == pytest.approx(0.1)
    assert paced_seconds(0.1, 0.4, 4) == pytest.approx(0.4)
    assert Pace(0.1, 0.4).rate(4, 8) == pytest.approx(80.0)
    found = cost(Cell(((0, 1),), ()))
    at_once = pace(found, Machine(1e12, 1e12, 1e12), 1)
    slower = pace(found, Machine(1e12, 1e12, 1e12, slowdown=10.0), 1)
    assert at_once.step_seconds == pytest.approx(3 * (2 * found.multiply_adds + 8 * found.written) / 1e12)
    assert at_once.exchange_seconds == pytest.approx(8 * found.weights / 1e12)
    assert slower.rate(5, 1) == pytest.approx(at_once.rate(5, 1) / 10)
