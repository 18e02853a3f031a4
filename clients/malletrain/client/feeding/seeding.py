"""Random numbers of a sample: they depend on the seed, the pass and the sample's number, and on nothing else."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

_NUMPY_SEEDS = 1 << 32


class MapDataset(Protocol):
    """A map-style dataset: samples by index."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """The sample with an index."""


def seed_of(seed: int, epoch: int, number: int) -> int:
    """Seed of one sample's random numbers, 63 bits.

    Args:
        seed: The training's seed.
        epoch: Which pass over the dataset, from 0.
        number: The sample's number in its pass, from 0.
    """
    digest = hashlib.blake2b(f"{seed}:{epoch}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class Preparation:
    """How samples of a dataset are prepared: equally, whoever prepares them.

    Attributes:
        dataset: The dataset.
        seed: The training's seed.
        size: Samples in a pass.
    """

    dataset: MapDataset
    seed: int
    size: int

    def prepare(self, number: int, index: int) -> Any:
        """Prepare one sample. The generators of `random`, NumPy and torch (CPU) are seeded for it, and put back.

        Args:
            number: The sample's number in the training, from 0.
            index: Its dataset index.
        """
        with _seed_generators(seed_of(self.seed, number // self.size, number % self.size)):
            return self.dataset[index]


@contextmanager
def _seed_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of what is imported, and put their states back afterwards."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch_state = torch.default_generator.get_state() if torch else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % _NUMPY_SEEDS)
    if torch:
        # Of the CPU only: `torch.manual_seed` would also change those of devices.
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        if torch:
            torch.default_generator.set_state(torch_state)
