"""Main jobs and trainings on one node: what each of the programs does, and how fast the main job is beside the others.

`python -m benchmarks.impact.neighbours compute|memory|training` runs one of them for ever. The first two print a line
with the work done, the wall-clock and the CPU time after each tenth of a second or so.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

_MATRIX = 96
_WORDS = 16 << 20
"""128 MiB for each array: four times the last cache of the machine that the table was made on, and more than most."""
_TELL_SECONDS = 0.1


class Sample(NamedTuple):
    """What a main job has done in one stretch.

    Attributes:
        work: Units of work.
        wall_seconds: How long it took.
        cpu_seconds: How much of a core it had.
    """

    work: float
    wall_seconds: float
    cpu_seconds: float


class Slowdown(NamedTuple):
    """How much slower a main job is beside something, over all rounds; relative, 0.1: it takes 10 % longer.

    Attributes:
        median: Of the rounds.
        low: A quarter of the rounds are below it.
        high: A quarter of the rounds are above it.
    """

    median: float
    low: float
    high: float


def slowdowns(
    rounds: Sequence[Mapping[str, Sample]], alone: str, seconds: Callable[[Sample], float]
) -> dict[str, Slowdown]:
    """The time for a unit of work beside each company, over the mean time alone in the rounds' two stretches around it.

    Args:
        rounds: Each with one stretch for each company, by its name.
        alone: The name of no company.
        seconds: Which time counts.

    Returns:
        By company, those without any left out; needs at least two rounds.
    """
    found = {}
    for name in rounds[0]:
        ratios = []
        for this, after in pairwise(rounds):
            base = statistics.fmean(seconds(one[alone]) / one[alone].work for one in (this, after))
            ratios.append(seconds(this[name]) / this[name].work / base - 1.0)
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        found[name] = Slowdown(median, low, high)
    return found


def compute() -> Callable[[], None]:
    """A step that stays within a core's own cache."""
    left = np.random.default_rng(1).random((_MATRIX, _MATRIX))
    right, out = left.T.copy(), np.empty_like(left)

    def step() -> None:
        for _ in range(20):
            np.matmul(left, right, out=out)

    return step


def memory() -> Callable[[], None]:
    """A step that does nothing but move memory: the triad of the STREAM benchmark (McCalpin 1995)."""
    first, second = np.ones(_WORDS), np.ones(_WORDS)
    part = _WORDS // 16
    position = 0

    def step() -> None:
        nonlocal position
        here = slice(position, position + part)
        np.multiply(first[here], 0.5, out=second[here])
        np.add(second[here], first[here], out=second[here])
        position = (position + part) % _WORDS

    return step


def training() -> Callable[[], None]:
    """A step of a small network, with batches from a set that no cache holds."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    inputs, labels = torch.randn(1 << 17, 512), torch.randint(0, 10, (1 << 17,))
    layers = [torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        chosen = torch.randint(0, len(inputs), (256,))
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()

    return step


def _tell_for_ever(step: Callable[[], None]) -> None:
    done = 0
    told = time.monotonic()
    print("ready", flush=True)
    while True:
        step()
        done += 1
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            print(done, told, time.process_time(), flush=True)


if __name__ == "__main__":
    _tell_for_ever({"compute": compute, "memory": memory, "training": training}[sys.argv[1]]())
