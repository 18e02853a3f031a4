"""What every measured training notes, and the small model that all of them train.

The log has one line per batch of rank 0: monotonic seconds, world size, batch number, world. A world is one entry into
the training loop; it has its own name even if the size is that of the one before.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

BATCH_SECONDS = 0.02
BATCH = 32
SAMPLES = 4096
_FOLDER = Path(os.environ["RESCALE_FOLDER"])
_INPUTS = torch.randn(SAMPLES, 32, generator=torch.Generator().manual_seed(1))
_LABELS = (_INPUTS[:, :4].sum(1) > 0).long()


def small_model() -> nn.Module:
    """A perceptron with one hidden layer, the same in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))


def loss_of(model: nn.Module, indices: list[int] | torch.Tensor) -> torch.Tensor:
    """The loss of these samples."""
    return functional.cross_entropy(model(_INPUTS[indices]), _LABELS[indices])


class Noting:
    """One worker's notes in one world; make a new one at each entry into the training loop."""

    _entries = 0

    def __init__(self, rank: int, size: int) -> None:
        """Note where this worker is to be found."""
        Noting._entries += 1
        self._rank, self._size = rank, size
        self._world = f"{os.getpid()}.{Noting._entries}"
        (_FOLDER / f"worker-{rank}").write_text(f"{os.getpid()} {size}\n")
        self._log = os.open(_FOLDER / "batches", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def batch(self, number: int) -> None:
        """A batch is done."""
        if self._rank == 0:
            os.write(self._log, f"{time.monotonic():.6f} {self._size} {number} {self._world}\n".encode())
