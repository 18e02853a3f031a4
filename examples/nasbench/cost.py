"""What a network of NAS-Bench-101 takes: arithmetic, memory traffic and weights, counted from its cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from examples.nasbench.space import Cell, Operation, channels

_KERNEL_AREAS = {Operation.CONV_3X3: 9, Operation.CONV_1X1: 1}


@dataclass(frozen=True)
class Size:
    """How large a network is built from a cell.

    Attributes:
        width: Channels of the stem; doubled at each further stack.
        stacks: Stacks of cells; between two of them, height and width of the image are halved.
        cells: Cells in each stack, at least 1.
        classes: Classes to tell apart.
    """

    width: int
    stacks: int
    cells: int
    classes: int = 10


PUBLISHED = Size(width=128, stacks=3, cells=3)
"""As Ying et al. train it, on images of 32 x 32."""

SMALL = Size(width=8, stacks=3, cells=1)
"""So small that a step of 8 samples of 16 x 16 takes some ten milliseconds of one processor core."""


@dataclass(frozen=True)
class Cost:
    """What a network, or a part of it, takes.

    Attributes:
        multiply_adds: Of one sample forward.
        written: Numbers that its layers write for one sample forward.
        weights: Parameters, that is gradients to exchange in each step.
    """

    multiply_adds: int
    written: int
    weights: int


def cost(cell: Cell, size: Size = PUBLISHED, pixels: int = 32) -> Cost:
    """What a cell's network takes.

    Args:
        cell: The cell.
        size: Of the network.
        pixels: Height and width of an image.
    """
    parts = list(_parts(cell, size, pixels))
    return Cost(
        sum(part.multiply_adds for part in parts),
        sum(part.written for part in parts),
        sum(part.weights for part in parts),
    )


def _parts(cell: Cell, size: Size, pixels: int) -> Iterator[Cost]:
    yield _convolution(9, 3, size.width, pixels**2)
    inputs = size.width
    for stack in range(size.stacks):
        outputs, places = size.width * 2**stack, (pixels // 2**stack) ** 2
        if stack:
            yield Cost(0, inputs * places, 0)
        for _ in range(size.cells):
            yield from _cell_parts(cell, inputs, outputs, places)
            inputs = outputs
    yield Cost(inputs * size.classes, size.classes, (inputs + 1) * size.classes)


def _cell_parts(cell: Cell, inputs: int, outputs: int, places: int) -> Iterator[Cost]:
    widths = channels(cell, inputs, outputs)
    for source, target in cell.edges:
        if source == 0:
            yield _convolution(1, inputs, widths[target], places)
    for width, operation in zip(widths[1:-1], cell.operations, strict=True):
        area = _KERNEL_AREAS.get(operation)
        yield _convolution(area, width, width, places) if area else Cost(0, width * places, 0)


def _convolution(area: int, inputs: int, outputs: int, places: int) -> Cost:
    """With its batch normalisation and ReLU, each of which writes as much as the convolution itself."""
    weights = area * inputs * outputs
    return Cost(weights * places, 3 * outputs * places, weights + 2 * outputs)
