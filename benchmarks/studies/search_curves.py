"""Learning curves of all networks of a small space, really trained: a table that searches are compared on.

NAS-Bench-101 is such a table, too. Here it is 162 networks: three operations in a row, one edge more or not, and three
learning rates; each trained on 512 of scikit-learn's digits, and judged by 512 others after each pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from examples.nasbench.space import Operation, pruned

PASSES = 4
TRAINED, JUDGED, BATCH = 512, 512, 64
LEARNING_RATES = (0.01, 0.05, 0.2)
_CHAIN, _EXTRA = ((0, 1), (1, 2), (2, 3), (3, 4)), (1, 4)


class Choice(NamedTuple):
    """One network of the space.

    Attributes:
        operations: Of the three vertices between input and output.
        has_extra: Whether the first of them leads to the output, too.
        learning_rate: Of SGD with momentum.
    """

    operations: tuple[str, str, str]
    has_extra: bool
    learning_rate: float


def all_choices() -> list[Choice]:
    """The whole space."""
    names = [str(operation) for operation in Operation]
    return [
        Choice((first, second, third), extra, rate)
        for first, second, third in itertools.product(names, repeat=3)
        for extra in (False, True)
        for rate in LEARNING_RATES
    ]


def curve_of(choice: Choice, seed: int = 1) -> tuple[float, ...]:
    """Share of the judged digits that it tells right after each pass."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional

    from examples.nasbench.cost import SMALL
    from examples.nasbench.network import Network

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    trained, judged = order[:TRAINED], order[TRAINED : TRAINED + JUDGED]
    edges = [*_CHAIN, _EXTRA] if choice.has_extra else list(_CHAIN)
    cell = pruned(edges, [Operation(name) for name in choice.operations])
    assert cell is not None, "the chain leads to the output"
    network = Network(cell, SMALL)
    optimizer = torch.optim.SGD(network.parameters(), lr=choice.learning_rate, momentum=0.9)
    found = []
    for _ in range(PASSES):
        network.train()
        for batch in trained.split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            found.append(float((network(images[judged]).argmax(1) == labels[judged]).float().mean()))
    return tuple(found)


def all_curves(processes: int) -> Mapping[Choice, tuple[float, ...]]:
    """The curves of the whole space."""
    choices = all_choices()
    with ProcessPoolExecutor(processes) as pool:
        return dict(zip(choices, pool.map(curve_of, choices), strict=True))
