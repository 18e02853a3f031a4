"""Orders by chunks, and litdata's data sets over changes of scale, with real loader processes."""

from __future__ import annotations

import itertools
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
from torch.utils.data import DataLoader

from malletrain.client.chunks import ChunkedDataset, ChunkOrder
from malletrain.client.sampling import ElasticBatches, EpochOrder, WorkerSampler

SIZES = (7, 7, 5, 7, 3, 7)
# It hands data sets over as spawn does, but its processes need not import torch again.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.client.loader_data", "litdata"])


@pytest.mark.parametrize("together", [1, 2, 4, 100])
def test_an_order_by_chunks_is_through_with_a_few_before_it_begins_with_others(together: int) -> None:
    size = sum(SIZES)
    orders = [ChunkOrder(SIZES, together)(size, seed) for seed in (1, 2)]
    assert ChunkOrder(SIZES, together)(size, 1) == orders[0]
    assert orders[0] != orders[1]
    chunk_of = [number for number, count in enumerate(SIZES) for _ in range(count)]
    for order in orders:
        assert sorted(order) == list(range(size))
        at_hand: set[int] = set()
        left = list(SIZES)
        for index in order:
            at_hand.add(chunk_of[index])
            left[chunk_of[index]] -= 1
            assert sum(left[chunk] > 0 for chunk in at_hand) <= together


def test_wrong_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes: expected chunks of at least 1 sample"):
        ChunkOrder((3, 0))
    with pytest.raises(ValueError, match="together: expected at least 1 chunk, got 0"):
        ChunkOrder((3,), 0)
    with pytest.raises(ValueError, match="dataset_size: expected the 36 samples of all chunks, got 35"):
        ChunkOrder(SIZES)(35, 0)
    with pytest.raises(TypeError, match="open_data: expected a StreamingDataset of litdata, got list"):
        ChunkedDataset(list)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A data set of litdata, with chunks of 7 samples."""
    pytest.importorskip("litdata", reason="needs litdata")
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(tmp_path), chunk_size=7)
    for number in range(60):
        writer.add_item(number, {"number": number, "values": torch.full((3,), float(number))})
    writer.done()
    writer.merge()
    return tmp_path


@pytest.mark.parametrize("start", ["fork", FORKSERVER], ids=["forked", "forkserver"])
def test_litdata_is_read_sample_by_sample_over_1_2_3_and_1_workers(written: Path, start: Any) -> None:
    import litdata

    data = ChunkedDataset(partial(litdata.StreamingDataset, str(written)))
    assert data.sizes == (7,) * 8 + (4,)
    # Opened here as well: the loader processes must not share what is open.
    assert data[59]["number"] == 59
    permute = data.order(together=2)
    position, seen = 0, []
    for workers, steps in ((1, 3), (2, 2), (3, 2), (1, 4)):
        ranks = [read(data, permute, rank, workers, position, steps, start) for rank in range(workers)]
        seen += [number for together in zip(*ranks, strict=True) for batch in together for number in batch]
        position = len(seen)
    # Into the second epoch, in the order of one worker that was never stopped.
    assert len(seen) == 4 * (3 + 4 + 6 + 4) > len(data)
    assert seen == EpochOrder(60, 5, permute).span(0, len(seen))
    assert sorted(seen[:60]) == list(range(60))


def read(
    data: ChunkedDataset, permute: ChunkOrder, rank: int, workers: int, position: int, steps: int, start: Any
) -> list[list[int]]:
    """What one worker trains with; its two loader processes have fetched more by then."""
    sampler = WorkerSampler(EpochOrder(len(data), 5, permute), 4, None)
    sampler.set_scale(rank, workers)
    batches = ElasticBatches(sampler.order, lambda: position, lambda: sampler.share)
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": start}
    found = []
    for batch in itertools.islice(DataLoader(data, batch_sampler=batches, **options), steps):
        assert batch["values"][:, 0].tolist() == batch["number"].tolist()
        found.append(batch["number"].tolist())
    return found
