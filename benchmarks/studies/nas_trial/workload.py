"""Trainings and idle nodes of the benchmark, the same for every system. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from examples.nasbench.cost import cost
from examples.nasbench.pace import Machine, Pace, pace
from examples.nasbench.space import Cell, sample_cell
from malletrain.scavenger.excerpt import busy_excerpt
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Trace

NODES = 8
TRACE_SECONDS = 900.0
BATCH_PER_WORKER = 8
MACHINE = Machine(flops=10e12, memory_bytes=700e9, network_bytes=12.5e9, slowdown=50.0)
"""A V100 (convolutions and memory) with a link of 100 Gbit/s. On two cores, eight workers need the slowdown."""

_ARCHITECTURES_PER_SEED = 1000
_GENERATED_NODES, _GENERATED_SECONDS, _IDLE_FRACTION = 256, 4 * 3600.0, 0.1


@dataclass(frozen=True)
class NasTraining:
    """A training to submit.

    Attributes:
        architecture: Seed of its cell.
        cell: Its architecture.
        pace: The times of a step.
    """

    architecture: int
    cell: Cell
    pace: Pace

    @property
    def name(self) -> str:
        """The job's name."""
        return f"nas-{self.architecture}"

    def linear_guess(self) -> tuple[tuple[int, float], ...]:
        """The curve that a user would guess: the right rate on one node and linear scaling, as (nodes, samples/s)."""
        single = self.pace.rate(1, BATCH_PER_WORKER)
        return tuple((nodes, nodes * single) for nodes in (1, NODES))


def trainings(count: int, seed: int) -> list[NasTraining]:
    """Trainings in the order of submission, determined by the arguments."""
    found = []
    for architecture in range(_ARCHITECTURES_PER_SEED * seed, _ARCHITECTURES_PER_SEED * seed + count):
        cell = sample_cell(random.Random(architecture))
        found.append(NasTraining(architecture, cell, pace(cost(cell), MACHINE, BATCH_PER_WORKER)))
    return found


def idle_trace(seed: int) -> Trace:
    """A busy quarter of an hour on eight nodes of a synthetic trace with Summit's statistics."""
    whole = generate(_GENERATED_NODES, _GENERATED_SECONDS, _IDLE_FRACTION, random.Random(seed))
    return busy_excerpt(whole, TRACE_SECONDS, NODES)


def pace_in_words() -> str:
    """The description of `MACHINE` for reports."""
    return (
        "A step is paced as its architecture, at NAS-Bench-101's own size, would take on a node that does "
        f"{MACHINE.flops / 1e12:g} TFLOP/s, moves {MACHINE.memory_bytes / 1e9:g} GB/s in memory and "
        f"{MACHINE.network_bytes / 1e9:g} GB/s to its neighbour, all of it {MACHINE.slowdown:g} times slower; the "
        "network that really computes meanwhile is the same cell, small."
    )
