"""Real data loaders, with real loader processes: which samples a training gets, over changes of scale."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import DataLoader

from malletrain.client.sampling import ElasticBatches, EpochOrder, WorkerSampler
from malletrain.client.streaming import ElasticStream
from tests.client.loader_data import Numbers, numbers_from, ten_numbers_from

SIZE, BATCH = 60, 4
# It hands data sets over as spawn does, but its processes need not import torch again.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.client.loader_data"])
LOADERS = [
    pytest.param({"num_workers": 0}, id="in-process"),
    pytest.param({"num_workers": 2, "multiprocessing_context": "fork"}, id="forked"),
    pytest.param({"num_workers": 2, "multiprocessing_context": FORKSERVER}, id="forkserver"),
]
SCALES = ((1, 3), (2, 2), (3, 2), (1, 4))
"""Workers, and how many global batches they train before the scale changes."""


class Worker:
    """One worker of a training at one scale: what the loaders follow."""

    def __init__(self, rank: int, workers: int, position: int, constant_batch: int | None = None) -> None:
        self.samples = position
        self.sampler = WorkerSampler(EpochOrder(SIZE, seed=5), BATCH, constant_batch)
        self.sampler.set_scale(rank, workers)

    def batches(self, until: int | None = None) -> ElasticBatches:
        return ElasticBatches(self.sampler.order, lambda: self.samples, lambda: self.sampler.share, until)

    def train(self, loader: Iterable[Any], steps: int) -> Iterator[list[tuple[int, int]]]:
        """Train some global batches, each of them one list of samples; the loader has fetched more by then."""
        iterator = iter(loader)
        for _ in range(steps):
            yield list(itertools.chain.from_iterable(itertools.islice(iterator, self.sampler.partition.micro_steps)))
            self.samples += self.sampler.partition.global_batch


def over_scales(loader_of: Any, constant_batch: int | None = None) -> tuple[list[int], set[int]]:
    """The samples of a training over changes of scale, in the order of the training; and who has read them."""
    seen: list[int] = []
    readers = set[int]()
    for workers, steps in SCALES:
        position = len(seen)
        ranks = []
        for rank in range(workers):
            worker = Worker(rank, workers, position, constant_batch)
            ranks.append(list(worker.train(loader_of(worker), steps)))
        for together in zip(*ranks, strict=True):
            for samples in together:
                seen += [index for index, _ in samples]
                readers |= {process for _, process in samples}
    return seen, readers


@pytest.mark.parametrize("options", LOADERS)
@pytest.mark.parametrize("constant_batch", [None, 6], ids=["batch-per-worker", "constant-batch"])
def test_a_map_style_data_set_is_read_in_its_order_at_every_scale(
    options: dict[str, Any], constant_batch: int | None
) -> None:
    def loader_of(worker: Worker) -> DataLoader[Any]:
        return DataLoader(Numbers(SIZE), batch_sampler=worker.batches(), collate_fn=list, **options)

    seen, readers = over_scales(loader_of, constant_batch)
    assert seen == EpochOrder(SIZE, seed=5).span(0, len(seen))
    assert sorted(seen[:SIZE]) == list(range(SIZE)) or len(seen) < SIZE
    assert (os.getpid() in readers) is (options["num_workers"] == 0)


@pytest.mark.parametrize("options", LOADERS)
@pytest.mark.parametrize("constant_batch", [None, 6], ids=["batch-per-worker", "constant-batch"])
def test_a_stream_is_read_in_its_order_at_every_scale(options: dict[str, Any], constant_batch: int | None) -> None:
    def loader_of(worker: Worker) -> DataLoader[Any]:
        stream = ElasticStream(worker.batches(), numbers_from)
        return DataLoader(stream, batch_size=None, collate_fn=list, **options)

    seen, readers = over_scales(loader_of, constant_batch)
    assert seen == list(range(len(seen)))
    assert (os.getpid() in readers) is (options["num_workers"] == 0)


def test_spawned_loader_processes_begin_at_the_position() -> None:
    worker = Worker(1, 2, 16)
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "collate_fn": list}
    stream = DataLoader(ElasticStream(worker.batches(32), numbers_from), batch_size=None, **options)
    assert [index for batch in stream for index, _ in batch] == [20, 21, 22, 23, 28, 29, 30, 31]
    by_index = DataLoader(Numbers(SIZE), batch_sampler=worker.batches(32), **options)
    order = EpochOrder(SIZE, seed=5)
    assert [index for batch in by_index for index, _ in batch] == [*order.span(20, 4), *order.span(28, 4)]


@pytest.mark.parametrize("options", LOADERS)
def test_a_new_iterator_over_the_same_loader_goes_on_at_the_position(options: dict[str, Any]) -> None:
    worker = Worker(1, 2, 16)
    stream = DataLoader(ElasticStream(worker.batches(), numbers_from), batch_size=None, collate_fn=list, **options)
    for first in (20, 28):
        assert [index for index, _ in next(worker.train(stream, 1))] == list(range(first, first + BATCH))
        worker.samples += 8


@pytest.mark.parametrize("options", LOADERS)
def test_the_iteration_ends_where_the_training_does(options: dict[str, Any]) -> None:
    worker = Worker(0, 2, 8)
    stream = DataLoader(ElasticStream(worker.batches(24), numbers_from), batch_size=None, collate_fn=list, **options)
    by_index = DataLoader(Numbers(SIZE), batch_sampler=worker.batches(24), collate_fn=list, **options)
    assert [len(batch) for batch in stream] == [len(batch) for batch in by_index] == [BATCH, BATCH]


def test_a_stream_refuses_loader_processes_that_stay() -> None:
    worker = Worker(0, 1, 0)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(ElasticStream(worker.batches(8), numbers_from), batch_size=None, collate_fn=list, **options)
    assert len(list(loader)) == 2
    with pytest.raises(RuntimeError, match="expected persistent_workers=False"):
        list(loader)


def test_a_stream_that_ends_too_early_is_an_error() -> None:
    stream = ElasticStream(Worker(0, 1, 4).batches(16), ten_numbers_from)
    with pytest.raises(ValueError, match="expected a stream with sample number 10, it has ended before"):
        list(stream)
