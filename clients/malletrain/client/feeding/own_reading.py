"""A training prepares its samples itself, with PyTorch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from malletrain.client.feeding.seeding import Preparation
from malletrain.client.sampling import NumberedBatch

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class _NumberedDataset:
    """A dataset whose indices are pairs: a sample's number in the training, and its dataset index."""

    preparation: Preparation

    def __len__(self) -> int:
        return self.preparation.size

    def __getitem__(self, index: tuple[int, int]) -> Any:
        return self.preparation.prepare(*index)


def read_batches(
    preparation: Preparation, batches: Iterator[NumberedBatch], workers: int, collate: Collate
) -> Iterator[Any]:
    """Prepare batches; some are taken from the iterator before they are handed out.

    Args:
        preparation: How samples are prepared.
        batches: Which ones.
        workers: Processes that prepare samples; 0: this process does.
        collate: Makes a batch of a list of samples.
    """
    from torch import Generator
    from torch.utils.data import DataLoader

    dataset: Any = _NumberedDataset(preparation)
    yield from DataLoader(
        dataset,
        batch_sampler=(list(batch.numbered()) for batch in batches),
        num_workers=workers,
        collate_fn=collate,
        # Of its own: else each iterator would change the training's random numbers.
        generator=Generator(),
    )
