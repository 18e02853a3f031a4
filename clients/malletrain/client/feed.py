"""Samples that several trainings share: each is prepared once on a node, for all trainings of one owner.

samples = SharedSamples(dataset, training.batches(), feed="data:training_set")
...
for images, labels in samples:
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from malletrain.client import note_feed
from malletrain.client.feeding.errors import FeedError, MovedError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.peer_registry import PeerSettings, peer_settings
from malletrain.client.feeding.private_folder import PrivateFolder, default_folder
from malletrain.client.feeding.seeding import MapDataset, Preparation
from malletrain.client.feeding.source import Argument, FeedSource, find_source
from malletrain.client.feeding.subscription import FeedSubscription
from malletrain.client.sampling import ElasticBatches, NumberedBatch
from malletrain.client.warn_once import WarnOnce
from malletrain.common import environment as env
from malletrain.common.files import open_log
from malletrain.common.job_folder import FEED_LOG, LOGS_FOLDER


@dataclass
class FeedLauncher:
    """Finds or starts the feed of one source.

    Attributes:
        source: What the feed prepares.
        folder: Where the account's feeds are found.
        limits: Limits of a feed that is started.
        workers: Processes of a feed that is started; None: it chooses their number.
        peers: How a feed that is started finds those of other nodes; None: it shares with none.
        process: The feed that this process has started last; None if it has started none.
    """

    source: FeedSource
    folder: Path
    limits: FeedLimits
    workers: int | None
    peers: PeerSettings | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def connect(self) -> socket.socket | None:
        """Connect to the feed, after it has been started if need be; None while somebody else is about to.

        Raises:
            OSError: the folder is not private, or there can be no feed.
        """
        if self.process is not None:
            self.process.poll()  # collects one that has ended
        folder = PrivateFolder(self.folder)
        name = f"{self.source.key}.sock"
        try:
            connection = folder.connect(name)
            if connection is not None:
                return connection
            with folder.locked() as alone:
                if not alone:
                    return None
                if (connection := folder.connect(name)) is None:
                    self._start(folder, name)
                    connection = folder.connect(name)
                return connection
        finally:
            folder.close()

    def _start(self, folder: PrivateFolder, name: str) -> None:
        """Start the feed. It inherits the environment, and so ends when the node is taken from this process's job."""
        listening = folder.listen(name)
        try:
            program = [sys.executable, "-P", "-m", "malletrain.client.feeding.process"]
            # Its output goes to a file: this process's own would keep a pipe of its launcher open.
            with open_log(log_path(os.environ, self.folder)) as log:
                # A session of its own: it serves other trainings when this one has ended.
                self.process = subprocess.Popen(
                    [*program, str(listening.fileno()), str(self.folder), name],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listening.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            folder.remove(name)
            raise
        finally:
            listening.close()
        assert self.process.stdin is not None
        peers = None if self.peers is None else self.peers.as_json()
        limits = self.limits.as_json()
        content = {"source": self.source.as_json(), "limits": limits, "workers": self.workers, "peers": peers}
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:  # it has ended: that is found out later
            stdin.write(json.dumps(content).encode())


def log_path(environ: Mapping[str, str], folder: Path) -> Path:
    """Where a feed writes its messages: in the logs of the job that starts it, elsewhere in the folder of the feeds."""
    job = environ.get(env.JOB_DIR)
    if job:
        with contextlib.suppress(OSError):
            logs = Path(job) / LOGS_FOLDER
            logs.mkdir(parents=True, exist_ok=True)
            return logs / FEED_LOG
    return folder / FEED_LOG


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
        workers: int | None = None,
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
                this training starts (at least 1). None: such a feed chooses their number by what its trainings can take
                and what it has measured, and without a feed there are none.
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
        if workers is not None and workers < 0:
            raise ValueError(f"workers: expected at least 0, got {workers}")
        if not 0 < patience_seconds < math.inf:
            raise ValueError(f"patience_seconds: expected a finite number above 0, got {patience_seconds}")
        self._batches, self._workers, self._collate = batches, workers or 0, collate
        self._preparation = Preparation(dataset, order.seed, order.size)
        self._feed: FeedSubscription | None = None
        self._newest: _Upcoming | None = None
        self.received = self.prepared = 0
        if spec := os.environ.get(env.FEED, feed):
            field = env.FEED if os.environ.get(env.FEED) else "feed"
            source = find_source(spec, arguments or {}, dataset, order.seed, field)
            folder = default_folder(os.environ)
            peers = peer_settings(os.environ, folder)
            processes = None if workers is None else max(1, workers)
            launcher = FeedLauncher(source, folder, limits or FeedLimits(), processes, peers)
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
            note_feed(self.received, self.prepared, *(self._feed.costs or (0, 0)))

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
