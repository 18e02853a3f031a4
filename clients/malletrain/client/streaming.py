"""Sample-exact streams: data sets that can only be read in order, in any number of workers and loader processes.

```python
stream = ElasticStream(training.batches(until=wanted), open_at)
for samples in DataLoader(stream, batch_size=None, collate_fn=default_collate, num_workers=2):
    ...
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from malletrain.client.sampling import ElasticBatches, SpanStart, spans_from

SampleT = TypeVar("SampleT")


class ElasticStream(IterableDataset[list[SampleT]]):  # type: ignore[misc]  # torch is not typed here
    """The micro-batches of this worker from the present position on, each a list of samples.

    Sample number i of the training is the i-th of the stream, at every scale. Each loader process reads the stream from
    the position on and drops what belongs to others, so a source that begins anywhere at no cost serves it best.
    """

    def __init__(self, batches: ElasticBatches, open_at: Callable[[int], Iterator[SampleT]]) -> None:
        """Follow a training.

        Args:
            batches: `training.batches(...)`; its dataset indices are not used.
            open_at: Opens the stream at the sample of a number, counted from 0 over all epochs. With loader processes
                that are spawned it has to be picklable: a function of a module, or an object with `__call__`.
        """
        self._batches: ElasticBatches | None = batches
        self._open_at = open_at
        self._start: SpanStart | None = None
        self._iterated_in = 0

    def __getstate__(self) -> dict[str, Any]:
        """What a spawned loader process gets: the position and share of this moment, not the training."""
        return {"_batches": None, "_open_at": self._open_at, "_start": self._present(), "_iterated_in": 0}

    def __iter__(self) -> Iterator[list[SampleT]]:
        """One micro-batch after the other; a loader process makes every n-th of n.

        Raises:
            RuntimeError: a loader process is to iterate again, but can't know the present position.
            ValueError: the stream has ended before the training.
        """
        info = get_worker_info()
        stale = info is not None and self._iterated_in == os.getpid()
        self._iterated_in = os.getpid()
        turn, turns = (0, 1) if info is None else (info.id, info.num_workers)
        return self._read(self._present(), turn, turns, stale)

    def _present(self) -> SpanStart:
        if self._batches is None:
            assert self._start is not None
            return self._start
        return self._batches.start()

    def _read(self, start: SpanStart, turn: int, turns: int, stale: bool) -> Iterator[list[SampleT]]:
        if stale:  # not before the first batch: an error at an earlier moment ends a loader process without a word
            raise RuntimeError("ElasticStream: expected persistent_workers=False: a loader process keeps its position")
        source: Iterator[SampleT] | None = None
        at = 0
        for number, span in enumerate(spans_from(start)):
            if number % turns != turn:
                continue
            if source is None:
                source, at = self._open_at(span.start), span.start
            while at < span.start:
                _next_of(source, at)
                at += 1
            yield [_next_of(source, place) for place in span]
            at = span.stop


def _next_of(source: Iterator[SampleT], number: int) -> SampleT:
    try:
        return next(source)
    except StopIteration:
        raise ValueError(f"open_at: expected a stream with sample number {number}, it has ended before") from None
