"""Samples that several trainings share: each is prepared once on a node, for all trainings of one owner.

samples = SharedSamples(dataset, training.batches(), feed="data:training_set", workers=4)
...
for images, labels in samples:
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from malletrain.client import note_feed
from malletrain.client.feeding.errors import FeedError, MovedError
from malletrain.client.feeding.launching import FeedLauncher
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.own_reading import Collate, read_batches
from malletrain.client.feeding.peer_registry import peer_settings
from malletrain.client.feeding.private_folder import default_folder
from malletrain.client.feeding.seeding import MapDataset, Preparation
from malletrain.client.feeding.source import Argument, find_source
from malletrain.client.feeding.subscription import FeedSubscription
from malletrain.client.sampling import ElasticBatches, NumberedBatch
from malletrain.client.warn_once import WarnOnce
from malletrain.common import environment as env

__all__ = ["FeedLimits", "SharedSamples"]

_MIN_AHEAD = 128
_MAX_AHEAD = 2048
"""Samples that are asked for before they are needed: two batches, within these bounds."""


class SharedSamples:
    """Batches of a map-style dataset, prepared by a feed that other trainings on this node use, too.

    They are those that `DataLoader(dataset, batch_sampler=batches)` hands out: the same samples in the same order,
    collated by the same function. Whether the feed or this process prepares a sample makes no difference to it: the
    global generators of `random`, NumPy and torch (CPU) are seeded by the seed of the order, the pass and the sample's
    number.

    Each `iter()` begins at the present position of the training, as that of `ElasticBatches` does. Without a feed, and
    where the feed is at another position, this process prepares the samples itself. One iterator is used at a time.

    Attributes:
        received: Samples that the feed has prepared for this process.
        prepared: Samples that this process has prepared itself.
    """

    def __init__(
        self,
        dataset: MapDataset,
        batches: ElasticBatches,
        *,
        feed: str = "",
        arguments: Mapping[str, Argument] | None = None,
        workers: int = 0,
        collate: Collate | None = None,
        patience_seconds: float = 2.0,
        limits: FeedLimits | None = None,
    ) -> None:
        """Nothing is started before the first iteration.

        Args:
            dataset: The dataset, for samples that this process prepares itself.
            batches: Which samples: `training.batches()`, or `malletrain.client.sampling.plain_batches(...)`.
            feed: MODULE:FUNCTION. The function returns the same dataset; the feed calls it. Empty: no feed.
                MALLETRAIN_FEED in the environment takes precedence.
            arguments: Keyword arguments of that function: text, numbers, True, False, None.
            workers: Processes that prepare samples: those of a DataLoader in this process (0: none), or of a feed that
                this training starts (at least 1).
            collate: Makes a batch of a list of samples; None: `torch.utils.data.default_collate`.
            patience_seconds: How long to wait for a feed that sends nothing, in seconds. Then this process prepares the
                samples itself, and looks for the feed again later.
            limits: Of a feed that this training starts.

        Raises:
            ValueError: an argument makes no sense, or the dataset has another length than the order of samples.
        """
        order = batches.order
        if len(dataset) != order.size:
            raise ValueError(f"dataset: expected {order.size} samples, as in the order of samples, got {len(dataset)}")
        if workers < 0:
            raise ValueError(f"workers: expected at least 0, got {workers}")
        if not 0 < patience_seconds < math.inf:
            raise ValueError(f"patience_seconds: expected a finite number above 0, got {patience_seconds}")
        self._batches, self._workers, self._collate = batches, workers, collate
        self._preparation = Preparation(dataset, order.seed, order.size)
        self._feed: FeedSubscription | None = None
        self._newest: _Upcoming | None = None
        self.received = self.prepared = 0
        if spec := os.environ.get(env.FEED, feed):
            field = env.FEED if os.environ.get(env.FEED) else "feed"
            source = find_source(spec, arguments or {}, dataset, order.seed, field)
            folder = default_folder(os.environ)
            peers = peer_settings(os.environ, folder)
            launcher = FeedLauncher(source, folder, limits or FeedLimits(), max(1, workers), peers)
            self._feed = FeedSubscription(launcher, source, patience_seconds, WarnOnce())

    def __iter__(self) -> Iterator[Any]:
        """One batch after the other.

        Raises:
            RuntimeError: there has been a rescale or a rollback; create a new iterator. Or a newer one has begun.
            Exception: what the dataset raises at a sample.
        """
        # Read here: the body of a generator begins to run with the first batch only.
        return self._hand_out(_Upcoming(self._batches.numbered()))

    def _hand_out(self, upcoming: _Upcoming) -> Iterator[Any]:
        self._newest = upcoming
        self._leave()  # an iterator before this one may not have ended
        try:
            for batch in self._read(upcoming):
                yield batch
                if self._newest is not upcoming:
                    raise RuntimeError("samples: expected one iterator at a time, and a newer one has begun")
        finally:
            if self._newest is upcoming:
                self._leave()

    def _leave(self) -> None:
        if self._feed is not None:
            self._feed.leave()

    def _read(self, upcoming: _Upcoming) -> Iterator[Any]:
        feed, collate = self._feed, self._collate or _default_collate()
        if feed is not None and upcoming.see(1):
            feed.wait_open(upcoming.position)
        while upcoming.see(1):
            if feed is not None:
                yield from self._read_from(feed, upcoming, collate)
            yield from self._read_itself(upcoming, collate)

    def _note(self) -> None:
        """Tell the session, whose sidecar reports it. Only where samples are shared."""
        if self._feed is not None:
            costs = self._feed.costs
            nanoseconds, processes = costs or (0, 0)
            note_feed(self.received, self.prepared, nanoseconds, processes)

    def _read_from(self, feed: FeedSubscription, upcoming: _Upcoming, collate: Collate) -> Iterator[Any]:
        """Batches from the feed, until it is lost or there are no more."""
        while (ahead := upcoming.see(_MIN_AHEAD)) and feed.poll(upcoming.position):
            try:
                offered = feed.take(ahead)
            except MovedError as error:
                feed.lost(error)
                feed.wait_open(upcoming.position)
                continue
            except FeedError as error:
                feed.lost(error)
                return
            samples = []
            for (number, index), each in zip(upcoming.take().numbered(), offered, strict=True):
                samples.append(each.sample if each.by_feed else self._preparation.prepare(number, index))
                self.received += each.by_feed
                self.prepared += not each.by_feed
            self._note()
            yield collate(samples)

    def _read_itself(self, upcoming: _Upcoming, collate: Collate) -> Iterator[Any]:
        """Batches that this process prepares, until there is a feed or there are no more."""
        taken: deque[int] = deque()

        def wanted() -> Iterator[NumberedBatch]:
            # When the feed answers, what has been begun is handed out, and nothing new is begun.
            while upcoming.see(1) and not (self._feed is not None and self._feed.poll(upcoming.position)):
                batch = upcoming.take()
                taken.append(len(batch.indices))
                yield batch

        for batch in read_batches(self._preparation, wanted(), self._workers, collate):
            self.prepared += taken.popleft()
            self._note()
            yield batch


class _Upcoming:
    """Batches that have not been handed out, with a look ahead."""

    def __init__(self, source: Iterator[NumberedBatch]) -> None:
        self._source = source
        self._seen: deque[NumberedBatch] = deque()

    def see(self, samples: int) -> list[NumberedBatch]:
        """The next batches: the first, and as many more as make up so many samples, or two batches."""
        ahead: list[NumberedBatch] = []
        count = at = 0
        while True:
            if at == len(self._seen):
                self._seen.extend(islice(self._source, 1))
            if at == len(self._seen) or (ahead and count >= max(samples, 3 * len(ahead[0].indices))):
                return ahead
            ahead.append(self._seen[at])
            count += len(self._seen[at].indices)
            at += 1
            if samples == 1 or count >= _MAX_AHEAD:
                return ahead

    @property
    def position(self) -> int:
        """Number in the training of the next sample, which has been seen."""
        return self._seen[0].first

    def take(self) -> NumberedBatch:
        """Remove the next batch."""
        return self._seen.popleft()


def _default_collate() -> Collate:
    from torch.utils.data import default_collate

    collate: Collate = default_collate
    return collate
