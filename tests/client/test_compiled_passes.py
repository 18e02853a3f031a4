"""torch.compile with a held batch: how often it compiles for passes of different sizes, and that it computes the same.

The graphs run as they are, so no C++ compiler is needed; `tests/training/test_compile.py` has a real one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from malletrain.client.sampling import BatchPartition, partition_batch

HELD, MOST = 22, 8
SCALES = (1, 3, 2, 1, 4)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))


def gradients(model: nn.Module, partition: BatchPartition, inputs: torch.Tensor) -> list[torch.Tensor]:
    """Those of a global batch: of the passes of all workers, one after the other."""
    model.zero_grad()
    sizes = [size for rank in range(len(partition.shares)) for size in partition.micro_batches(rank)]
    for indices in torch.arange(len(inputs)).split(sizes):
        # A copy, as loaders make it: the compiler would also tell apart where views begin.
        rows = inputs[indices]
        loss = model(rows).square().mean() * partition.weight(len(rows)) / len(partition.shares)
        loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_one_graph_fits_all_passes_after_the_second_size() -> None:
    counter, plain = CompileCounter(), network()
    compiled = torch.compile(network(), backend=counter)
    inputs = torch.randn(HELD, 6, generator=torch.Generator().manual_seed(1))
    counts, sizes = [], []
    for workers in SCALES:
        partition = partition_batch(HELD, MOST, workers)
        sizes.append({size for rank in range(workers) for size in partition.micro_batches(rank)})
        found, expected = gradients(compiled, partition, inputs), gradients(plain, partition, inputs)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        counts.append(counter.frame_count)
    assert sizes == [{7, 8}, {7, 8}, {5, 6}, {7, 8}, {5, 6}], "the test has passes of four sizes"
    # The first size as it is; at the second one a graph for any size.
    assert counts == [2] * len(SCALES)


def test_a_pass_of_one_sample_has_a_graph_of_its_own() -> None:
    counter = CompileCounter()
    compiled = torch.compile(network(), backend=counter)
    counts = []
    for size in (4, 3, 1, 2, 1):
        compiled(torch.zeros(size, 6)).sum().backward()
        counts.append(counter.frame_count)
    assert counts == [1, 2, 3, 3, 3]


def test_a_batch_of_one_size_is_compiled_once() -> None:
    counter = CompileCounter()
    compiled = torch.compile(network(), backend=counter)
    for _, workers in itertools.product(range(2), SCALES):
        for _ in range(workers):
            compiled(torch.zeros(MOST, 6)).sum().backward()
    assert counter.frame_count == 1
