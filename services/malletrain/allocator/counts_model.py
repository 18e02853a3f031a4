"""The production model for HiGHS: one binary per (job, size), one row per job, one row for the pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.allocator.integer_model import Floats, IntegerModel
from malletrain.allocator.worth import Worth


def counts_model(worths: Sequence[Worth], pool: int) -> IntegerModel:
    """Maximise the sum of the chosen values, one size per job, within the pool of nodes."""
    kept = [worth.useful() for worth in worths]
    lengths = np.asarray([len(entry) for entry in kept], dtype=np.int64)
    total = int(lengths.sum())
    values = np.concatenate([np.zeros(0), *(worth.values[entry] for worth, entry in zip(worths, kept, strict=True))])
    sizes = np.concatenate([np.zeros(0), *(worth.sizes[entry] for worth, entry in zip(worths, kept, strict=True))])
    everything = np.arange(total, dtype=np.int32)
    jobs = len(worths)
    # Values of 1e7 and gaps of 1e-9 do not go together: scale to at most 1.
    scale = float(np.abs(values).max()) if total else 1.0
    return IntegerModel(
        cost=values / (scale or 1.0),
        lower=np.zeros(total),
        upper=np.ones(total),
        integer=np.ones(total, dtype=np.bool_),
        row_lower=np.concatenate((np.ones(jobs), [-np.inf])),
        row_upper=np.concatenate((np.ones(jobs), [float(pool)])),
        start=np.concatenate(([0], np.cumsum(lengths), [2 * total])).astype(np.int32),
        index=np.concatenate((everything, everything)),
        value=np.concatenate((np.ones(total), sizes)),
    )


def read_counts(worths: Sequence[Worth], solution: Floats) -> list[int]:
    """The chosen size of every job."""
    counts = []
    first = 0
    for worth in worths:
        kept = worth.useful()
        counts.append(int(worth.sizes[kept[int(np.argmax(solution[first : first + len(kept)]))]]))
        first += len(kept)
    return counts
