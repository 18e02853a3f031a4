"""This worker's share of the samples at the present scale."""

from __future__ import annotations

from collections.abc import Iterator

from malletrain.client.learning_rate import Accumulation, accumulation
from malletrain.client.sampling import EpochOrder, Place, micro_batches


class Shares:
    """Divides each global batch among the workers.

    Attributes:
        order: The order of samples.
        place: This worker's place; changes with every rescale and rollback.
    """

    place: Place

    def __init__(self, order: EpochOrder, batch_per_worker: int, hold: int | None) -> None:
        """Without a place before the first `move`.

        Args:
            order: The order of samples, the same for all workers.
            batch_per_worker: Samples per worker and pass.
            hold: Global batch in samples to hold by gradient accumulation; None: it grows with the workers.
        """
        self.order = order
        self._batch = batch_per_worker
        self._hold = hold
        self._generation = 0

    @property
    def division(self) -> Accumulation:
        """How the global batch is divided."""
        return self.place.division

    def move(self, rank: int, workers: int) -> None:
        """Take a place among so many workers."""
        self._generation += 1
        if self._hold is None:
            division = Accumulation((self._batch,) * workers, 1, self._batch * workers)
        else:
            division = accumulation(self._hold, self._batch, workers)
        self.place = Place(self._generation, rank, division)

    def even(self, samples: int) -> list[int]:
        """Dataset indices of this worker's share of the next global batch.

        Raises:
            RuntimeError: the batch is held, and may take several passes.
        """
        if self._hold is not None:
            raise RuntimeError("next_indices: shares are uneven with hold_batch; train with micro_batches()")
        return micro_batches(self.order, samples, self.place)[0]

    def passes(self, samples: int) -> Iterator[tuple[list[int], float]]:
        """Dataset indices of this worker's passes of the next global batch, and the weight of each mean loss."""
        for indices in micro_batches(self.order, samples, self.place):
            yield indices, self.division.weight(len(indices))
