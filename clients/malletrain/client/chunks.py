"""Data sets in chunks, such as those of litdata, sample-exact over changes of scale: which order, and how to read it.

```python
data = ChunkedDataset(partial(litdata.StreamingDataset, "s3://bucket/folder"))
training = ElasticTraining(model, optimizer, dataset_size=len(data), permute=data.order(), ...)
loader = DataLoader(data, batch_sampler=training.batches(until=wanted), num_workers=2)
```

litdata itself is not imported here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from torch.utils.data import Dataset


class _Chunked(Protocol):
    """What is used of litdata's `StreamingDataset`: of each chunk, the samples from one number to before another."""

    region_of_interest: list[tuple[int, int]]

    def __getitem__(self, index: int) -> Any:
        """The sample at an index."""


@dataclass(frozen=True)
class ChunkOrder:
    """A random order that is through with a few chunks before it begins with others; the same for every worker.

    Chunks are shuffled, and then the samples of each `together` of them. Give it to a training as `permute`.

    Attributes:
        sizes: Samples in each chunk.
        together: Chunks whose samples are mixed: more mix better, and more have to be at hand.
    """

    sizes: tuple[int, ...]
    together: int = 4

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: a field is out of its range.
        """
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError("sizes: expected chunks of at least 1 sample each")
        if self.together < 1:
            raise ValueError(f"together: expected at least 1 chunk, got {self.together}")

    def __call__(self, size: int, seed: int) -> Sequence[int]:
        """The order of an epoch.

        Args:
            size: Samples in the data set.
            seed: Seed of the epoch.

        Raises:
            ValueError: the chunks have another number of samples.
        """
        if size != sum(self.sizes):
            raise ValueError(f"dataset_size: expected the {sum(self.sizes)} samples of all chunks, got {size}")
        chance = random.Random(seed)
        chunks = [range(end - count, end) for count, end in zip(self.sizes, accumulate(self.sizes), strict=True)]
        chance.shuffle(chunks)
        order: list[int] = []
        for first in range(0, len(chunks), self.together):
            mixed = [index for chunk in chunks[first : first + self.together] for index in chunk]
            chance.shuffle(mixed)
            order += mixed
        return order


class ChunkedDataset(Dataset[Any]):  # type: ignore[misc]  # torch is not typed here
    """A chunked data set by index, for `DataLoader(batch_sampler=training.batches())`.

    Each process opens it for itself: files that are open are not shared by forked loader processes.
    """

    def __init__(self, open_data: Callable[[], _Chunked]) -> None:
        """Open it once, to know its chunks.

        Args:
            open_data: Opens it, e.g. `partial(litdata.StreamingDataset, folder)`; without `shuffle`. Has to be
                picklable for loader processes that are spawned.

        Raises:
            TypeError: it does not say which chunks it has.
        """
        self._open = open_data
        opened = open_data()
        if not hasattr(opened, "region_of_interest"):
            raise TypeError(f"open_data: expected a StreamingDataset of litdata, got {type(opened).__name__}")
        self.sizes = tuple(end - first for first, end in opened.region_of_interest)
        self._opened: tuple[int, _Chunked] | None = None

    def order(self, together: int = 4) -> ChunkOrder:
        """A random order by chunks, for `permute` of a training.

        Args:
            together: Chunks whose samples are mixed.
        """
        return ChunkOrder(self.sizes, together)

    def __len__(self) -> int:
        """Number of samples."""
        return sum(self.sizes)

    def __getitem__(self, index: int) -> Any:
        """The sample at an index."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open()
        return self._opened[1][index]

    def __getstate__(self) -> dict[str, Any]:
        """What a spawned loader process gets."""
        return {**self.__dict__, "_opened": None}
