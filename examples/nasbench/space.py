"""The search space of NAS-Bench-101: cells that are small graphs of convolutions and poolings. Pure.

Ying et al., "NAS-Bench-101: Towards Reproducible Neural Architecture Search", ICML 2019, section 2: a cell is a
directed acyclic graph of at most 7 vertices and 9 edges. Its first vertex is the input, its last the output; each of
those between them is a 3x3 convolution, a 1x1 convolution or a 3x3 max pooling.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

MAX_VERTICES = 7
MAX_EDGES = 9
_EDGE_PROBABILITY = 0.5
# The benchmark's 423,624 different architectures by their number of vertices.
_ARCHITECTURES = {2: 1, 3: 6, 4: 84, 5: 2441, 6: 62010, 7: 359082}


class Operation(StrEnum):
    """What a vertex between input and output does."""

    CONV_3X3 = "conv3x3"
    CONV_1X1 = "conv1x1"
    POOL_3X3 = "maxpool3x3"


@dataclass(frozen=True)
class Cell:
    """A cell of the space.

    Attributes:
        edges: Pairs of vertices, the lower first (an upper-triangular adjacency matrix), in ascending order. Vertex 0
            is the input, vertex `vertices - 1` the output; each vertex lies on a path from the one to the other.
        operations: What the vertices 1 to `vertices - 2` do.
    """

    edges: tuple[tuple[int, int], ...]
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            ValueError: it is not a cell of the space.
        """
        output = self.vertices - 1
        if self.vertices > MAX_VERTICES:
            raise ValueError(f"operations: expected at most {MAX_VERTICES - 2}, got {len(self.operations)}")
        if len(self.edges) > MAX_EDGES:
            raise ValueError(f"edges: expected at most {MAX_EDGES}, got {len(self.edges)}")
        if list(self.edges) != sorted(set(self.edges)) or not all(0 <= a < b <= output for a, b in self.edges):
            raise ValueError(f"edges: expected ascending pairs, from 0 to {output}, got {self.edges}")
        if between(self.edges, output) != set(range(self.vertices)):
            raise ValueError(f"edges: expected each vertex on a path from input to output, got {self.edges}")

    @property
    def vertices(self) -> int:
        """Number of vertices, input and output included."""
        return len(self.operations) + 2

    def sources(self, vertex: int) -> tuple[int, ...]:
        """Vertices with an edge to this one, ascending."""
        return tuple(source for source, target in self.edges if target == vertex)

    def __str__(self) -> str:
        """For people: `conv3x3 maxpool3x3; 0-1 0-2 1-3 2-3`."""
        edges = " ".join(f"{source}-{target}" for source, target in self.edges)
        return f"{' '.join(self.operations) or 'nothing'}; {edges}"


def sample_cell(rng: random.Random) -> Cell:
    """Draw a cell with as many vertices as the architectures of the benchmark have.

    The number of vertices is drawn first. Then each of the 21 edges between 7 vertices is there or not, each operation
    is drawn alike, and what lies on no path from input to output is pruned, again and again until a cell of that number
    is left. (Without the first step, two of five cells would be nothing but an edge from input to output.)

    Args:
        rng: Source of randomness.
    """
    (vertices,) = rng.choices(list(_ARCHITECTURES), list(_ARCHITECTURES.values()))
    while True:
        edges = [pair for pair in combinations(range(MAX_VERTICES), 2) if rng.random() < _EDGE_PROBABILITY]
        operations = [rng.choice(list(Operation)) for _ in range(MAX_VERTICES - 2)]
        cell = pruned(edges, operations)
        if cell is not None and cell.vertices == vertices:
            return cell


def pruned(edges: Sequence[tuple[int, int]], operations: Sequence[Operation]) -> Cell | None:
    """The cell that is left without vertices that are on no path from input to output.

    Args:
        edges: Pairs of vertices, the lower first.
        operations: Of the vertices between the first and the last.

    Returns:
        None where no path leads to the output, or too many edges are left.
    """
    output = len(operations) + 1
    kept = sorted(between(edges, output))
    places = {vertex: place for place, vertex in enumerate(kept)}
    left = tuple(sorted((places[a], places[b]) for a, b in edges if a in places and b in places))
    if not kept or len(left) > MAX_EDGES:
        return None
    return Cell(left, tuple(operations[vertex - 1] for vertex in kept[1:-1]))


def between(edges: Sequence[tuple[int, int]], output: int) -> set[int]:
    """Vertices on a path from vertex 0 to `output`; none where there is no such path."""
    forward, backward = {0}, {output}
    # Edges lead upwards, so that one pass in their order finds all.
    for source, target in sorted(edges):
        if source in forward:
            forward.add(target)
    for source, target in sorted(edges, key=lambda edge: edge[1], reverse=True):
        if target in backward:
            backward.add(source)
    return forward & backward


def channels(cell: Cell, inputs: int, outputs: int) -> tuple[int, ...]:
    """Channels of each vertex of a cell, by the benchmark's rule.

    The output concatenates what comes from the vertices between, which share its channels, the first ones taking what
    does not divide. Any other vertex has as many as the largest that it leads to.

    Args:
        cell: The cell.
        inputs: Channels of the input.
        outputs: Channels of the output.

    Raises:
        ValueError: there are fewer of them than vertices that share them.
    """
    last = cell.vertices - 1
    sharing = [source for source in cell.sources(last) if source]
    if len(sharing) > outputs:
        raise ValueError(f"outputs: expected a channel for each of {len(sharing)} vertices, got {outputs}")
    found = [inputs, *[0] * len(cell.operations), outputs]
    for place, vertex in enumerate(sharing):
        found[vertex] = outputs // len(sharing) + (place < outputs % len(sharing))
    for vertex in range(last - 1, 0, -1):
        if vertex not in sharing:
            found[vertex] = max(found[target] for source, target in cell.edges if source == vertex)
    return tuple(found)
