"""Cells as networks: shapes, gradients, and weights as counted."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.nasbench.cost import SMALL, Size, cost
from examples.nasbench.network import CellModule, Network
from examples.nasbench.space import Cell, Operation, sample_cell

SCRIPT = Path(__file__).parents[2] / "examples/nasbench/train.py"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 60, 20)])
def test_forward_and_backward_of_what_is_drawn(seeds: range) -> None:
    for seed in seeds:
        cell = sample_cell(random.Random(seed))
        network = Network(cell)
        images = torch.randn(2, 3, 8, 8)
        scores = network(images)
        assert scores.shape == (2, 10)
        scores.logsumexp(1).sum().backward()
        assert all(weight.grad is not None for weight in network.parameters())
        assert sum(weight.numel() for weight in network.parameters()) == cost(cell, SMALL, 8).weights


def test_sizes() -> None:
    cell = sample_cell(random.Random(3))
    size = Size(width=6, stacks=2, cells=2, classes=4)
    network = Network(cell, size)
    assert network(torch.randn(3, 3, 10, 12)).shape == (3, 4)
    assert sum(weight.numel() for weight in network.parameters()) == cost(cell, size, 10).weights


@pytest.mark.parametrize("outputs", [5, 8, 13])
def test_a_cell_keeps_height_and_width(outputs: int) -> None:
    for seed in range(10):
        module = CellModule(sample_cell(random.Random(seed)), 4, outputs)
        assert module(torch.randn(2, 4, 5, 7)).shape == (2, outputs, 5, 7)


def test_a_cell_of_one_edge_is_a_projection() -> None:
    module = CellModule(Cell(((0, 1),), ()), 4, 6).eval()
    images = torch.randn(2, 4, 5, 5)
    assert torch.equal(module(images), module.projections["1"](images))


def test_a_cell_by_hand() -> None:
    """Input to a pooling and to the output; the pooling to the output: its result plus a projection of the input."""
    module = CellModule(Cell(((0, 1), (0, 2), (1, 2)), (Operation.POOL_3X3,)), 4, 6).eval()
    images = torch.randn(2, 4, 5, 5)
    pooled = torch.nn.functional.max_pool2d(module.projections["1"](images), 3, stride=1, padding=1)
    assert torch.allclose(module(images), pooled + module.projections["2"](images))


def test_the_training_runs_without_malletrain(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLETRAIN_", "HOROVOD_"))
    }
    command = [sys.executable, str(SCRIPT), "--architecture", "3", "--samples", "40", "--pixels", "8"]
    done = subprocess.run(
        [*command, "--step-seconds", "0.01"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"architecture 3: {sample_cell(random.Random(3))}" in done.stdout
    assert "done: 40 samples, loss" in done.stdout
    assert list(tmp_path.iterdir()) == []
