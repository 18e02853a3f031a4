"""A cell of NAS-Bench-101 as a network of PyTorch, of any size (Ying et al. 2019, section 2.3 and Fig. 1)."""

from __future__ import annotations

import torch
from torch import nn

from examples.nasbench.cost import SMALL, Size
from examples.nasbench.space import Cell, Operation, channels


class CellModule(nn.Module):
    """One cell: N x inputs x H x W to N x outputs x H x W."""

    def __init__(self, cell: Cell, inputs: int, outputs: int) -> None:
        """Build it.

        Args:
            cell: The graph.
            inputs: Channels that come in.
            outputs: Channels that go out.
        """
        super().__init__()
        self._cell = cell
        self._channels = channels(cell, inputs, outputs)
        # Where the input enters a vertex, a projection gives it the channels that are wanted there.
        self.projections = nn.ModuleDict(
            {
                str(target): convolution(inputs, self._channels[target], 1)
                for source, target in cell.edges
                if source == 0
            }
        )
        self.operations = nn.ModuleList(
            operation_module(operation, self._channels[vertex]) for vertex, operation in enumerate(cell.operations, 1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """From the input to the output."""
        tensors = {0: images}
        for vertex, operation in enumerate(self.operations, 1):
            tensors[vertex] = operation(self._sum_into(vertex, tensors))
        return self._output(tensors)

    def _sum_into(self, vertex: int, tensors: dict[int, torch.Tensor]) -> torch.Tensor:
        width = self._channels[vertex]
        parts = [
            # A vertex may have channels more than the one it leads to: what is too much is cut off.
            tensors[source][:, :width] if source else self.projections[str(vertex)](tensors[0])
            for source in self._cell.sources(vertex)
        ]
        return sum(parts[1:], start=parts[0])

    def _output(self, tensors: dict[int, torch.Tensor]) -> torch.Tensor:
        last = self._cell.vertices - 1
        sources = self._cell.sources(last)
        joined = [tensors[source] for source in sources if source]
        if 0 not in sources:
            return torch.cat(joined, 1)
        projected: torch.Tensor = self.projections[str(last)](tensors[0])
        return torch.cat(joined, 1) + projected if joined else projected


class Network(nn.Module):
    """Stem, stacks of one cell, and a classifier: N x 3 x H x W to N x classes."""

    def __init__(self, cell: Cell, size: Size = SMALL) -> None:
        """Build it; H and W must be at least 2 to the power of `size.stacks - 1`."""
        super().__init__()
        layers: list[nn.Module] = [convolution(3, size.width, 3)]
        inputs = size.width
        for stack in range(size.stacks):
            outputs = size.width * 2**stack
            layers += [nn.MaxPool2d(2)] if stack else []
            for _ in range(size.cells):
                layers.append(CellModule(cell, inputs, outputs))
                inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, size.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        scores: torch.Tensor = self.classifier(self.layers(images).mean((2, 3)))
        return scores


def convolution(inputs: int, outputs: int, kernel: int) -> nn.Module:
    """Convolution, batch normalisation and ReLU; height and width stay."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def operation_module(operation: Operation, width: int) -> nn.Module:
    """What a vertex does; as many channels come out as go in."""
    if operation is Operation.POOL_3X3:
        return nn.MaxPool2d(3, stride=1, padding=1)
    return convolution(width, width, 3 if operation is Operation.CONV_3X3 else 1)
