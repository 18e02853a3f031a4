"""A training's connection to the feed. No fault of the feed keeps the training waiting for longer than its patience."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from malletrain.client.feeding.codec import decode
from malletrain.client.feeding.errors import FeedError, MovedError
from malletrain.client.feeding.messages import (
    MAX_PACKET_BYTES,
    Costs,
    Hello,
    Message,
    Ready,
    ReadyPlace,
    Refused,
    Unable,
    Welcome,
    pack,
    requests,
    unpack,
)
from malletrain.client.feeding.ring_memory import FeedRingReader
from malletrain.client.feeding.source import FeedSource
from malletrain.client.sampling import NumberedBatch
from malletrain.client.warn_once import WarnOnce, describe

_FIRST_PAUSE_SECONDS = 0.1
_SILENT_PAUSE_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 60.0


class Connector(Protocol):
    """Finds or starts a feed; see `launching.FeedLauncher`."""

    def connect(self) -> socket.socket | None:
        """A connection to the feed; None if there is none yet.

        Raises:
            OSError: there can be no feed.
        """


class OfferedSample(NamedTuple):
    """What the feed has for a training.

    Attributes:
        sample: The sample; nothing if the training has to prepare it itself.
        by_feed: Whether the feed has prepared it.
    """

    sample: Any
    by_feed: bool


class SilentFeedError(FeedError):
    """The feed sends nothing for longer than the training waits."""


class FeedSubscription:
    """Asks a feed for the samples of one training, in order.

    Attributes:
        costs: What preparing costs in the feed, as it has said last; None: it has not.
    """

    def __init__(
        self,
        connector: Connector,
        source: FeedSource,
        patience_seconds: float,
        warnings: WarnOnce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is started before the first `poll`.

        Args:
            patience_seconds: How long to wait while the feed sends nothing.
            clock: Monotonic time in seconds.
        """
        self._connector, self._source, self._patience = connector, source, patience_seconds
        self._warnings, self._clock = warnings, clock
        self._socket: socket.socket | None = None
        self._pid = 0
        self._ring: FeedRingReader | None = None
        self._asked: dict[int, int] = {}
        self._got: dict[int, OfferedSample] = {}
        self._end = 0
        self._missed: int | None = None
        self._try_at = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._over = False
        self.costs: Costs | None = None

    def wait_open(self, position: int) -> None:
        """Wait until the feed answers, as long as patience lasts and it may answer in that time; see `poll`."""
        deadline = self._clock() + self._patience
        while not self._over and not self.poll(position) and (left := deadline - self._clock()) > 0:
            if self._socket is None:
                if self._try_at >= deadline:
                    return
                time.sleep(min(left, _FIRST_PAUSE_SECONDS))
            else:
                self._wait(left)

    def poll(self, position: int) -> bool:
        """Whether samples can be asked for now. Looks for a feed if there is none, and starts one. Does not wait."""
        if self._over:
            return False
        try:
            if self._socket is None and self._clock() >= self._try_at:
                self._connect(position)
            if self._socket is not None and self._ring is None:
                self._read_welcome()
        except (FeedError, OSError) as error:
            self.lost(error)
        return self._ring is not None

    def take(self, ahead: Sequence[NumberedBatch]) -> list[OfferedSample]:
        """The samples of the next batch, and ask for those that follow.

        Args:
            ahead: The next batch, and some of those that follow. The numbers of their samples rise, also from one call
                to the next.

        Raises:
            FeedError: the feed has gone, or does not answer, or refuses. The training goes on without it; see `lost`.
        """
        batch = ahead[0]
        try:
            self._ask(ahead)
            self._read()
            if any(number in self._asked for number, _ in batch.numbered()):
                self._await(batch)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._read()  # it may have said why
            raise FeedError(f"it has gone: {describe(error)}") from error
        self._pause = _FIRST_PAUSE_SECONDS
        return [self._got.pop(number) for number, _ in batch.numbered()]

    def lost(self, error: FeedError | OSError) -> None:
        """Go on without the feed, and look for it again after a pause, unless that is of no use."""
        self.leave()
        if isinstance(error, MovedError):
            self._try_at = self._clock()
            return
        self._over = isinstance(error, FeedError) and error.final
        then = "is tried again later" if not self._over else "is not used"
        reason = str(error) if isinstance(error, FeedError) else describe(error)
        self._warnings.warn(f"feed {type(error).__name__} {self._over}", f"the feed {then}: {reason}")
        if isinstance(error, SilentFeedError):
            self._pause = max(self._pause, _SILENT_PAUSE_SECONDS)
        self._try_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)

    def leave(self) -> None:
        """End the connection; `poll` makes another one. What has been asked for is forgotten."""
        if self._socket is not None:
            if os.getpid() == self._pid:
                # Processes that were forked from this one (of a DataLoader, say) hold the socket open, too.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        if self._ring is not None:
            self._ring.close()
        self._socket = self._ring = None
        self._asked.clear()
        self._got.clear()
        self._end, self._missed = 0, None

    def _connect(self, position: int) -> None:
        self._socket, self._pid = self._connector.connect(), os.getpid()
        if self._socket is None:
            self._try_at = self._clock() + _FIRST_PAUSE_SECONDS
        else:
            self._send(pack(Hello(self._source.key, self._source.size, self._source.kind, position)))

    def _read_welcome(self) -> None:
        assert self._socket is not None
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, MAX_PACKET_BYTES, 1)
        except BlockingIOError:
            return
        if not packet:
            raise FeedError("it has ended")
        message = unpack(packet)
        match message:
            case Welcome(size) if len(descriptors) == 1:
                self._ring = FeedRingReader(descriptors[0], size)
                return
            case Refused(reason, final):
                raise FeedError(reason, final=final)
        raise FeedError(f"message: expected a welcome, got {type(message).__name__}")

    def _ask(self, ahead: Sequence[NumberedBatch]) -> None:
        new = [batch for batch in ahead if batch.first >= self._end]
        for batch in new:
            self._asked.update(batch.numbered())
            self._end = batch.end
        self._say(waiting=False, new=new)

    def _say(self, *, waiting: bool, new: Sequence[NumberedBatch] = ()) -> None:
        """Tell the position: the first number that has not come, or else the first that has not been asked for."""
        position = next(iter(self._asked), self._end)
        for request in requests(position, [(batch.first, batch.indices) for batch in new], waiting=waiting):
            self._send(pack(request))

    def _await(self, batch: NumberedBatch) -> None:
        missing = [number for number, _ in batch.numbered() if number in self._asked]
        until = self._clock() + self._patience
        while missing:
            self._say(waiting=True)
            if not self._wait(until - self._clock()):
                raise SilentFeedError(f"it has sent no sample for {self._patience:g} s")
            before, costs = len(self._asked), self.costs
            self._read()
            missing = [number for number in missing if number in self._asked]
            if len(self._asked) < before:
                until = self._clock() + self._patience
            elif missing and self.costs is costs:
                raise SilentFeedError("it has sent nothing that was asked for")
        self._say(waiting=False)

    def _wait(self, seconds: float) -> bool:
        """Wait for a message; whether there is one."""
        assert self._socket is not None
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(max(0.0, seconds) * 1000))

    def _read(self) -> None:
        """Read all that has come. What was copied counts only if the feed had not dropped this training meanwhile."""
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while packet := self._socket.recv(MAX_PACKET_BYTES):
                self._handle(unpack(packet))
            raise FeedError("it has ended")
        if self._missed is not None:
            # Had the feed dropped this training, it would have said so before the sample gave way.
            raise FeedError(f"sample {self._missed} has given way before it was copied")

    def _handle(self, message: Message) -> None:
        match message:
            case Ready(places):
                for place in places:
                    self._copy(place)
            case Unable(number, reason):
                self._expect(number)
                self._got[number] = OfferedSample(None, by_feed=False)
                self._warnings.warn("sample", f"the feed could not prepare sample {number}: {reason}")
            case Refused(reason, _, True):
                raise MovedError(reason)
            case Refused(reason, final):
                raise FeedError(reason, final=final)
            case Costs():
                self.costs = message
            case _:
                raise FeedError(f"message: expected samples, got {type(message).__name__}")

    def _copy(self, place: ReadyPlace) -> None:
        assert self._ring is not None
        if self._expect(place.number) != place.dataset_index:
            raise FeedError(f"sample {place.number}: expected another dataset index than {place.dataset_index}")
        content = self._ring.copy(place)
        if content is None:
            self._missed = place.number
            return
        self._got[place.number] = OfferedSample(decode(content), by_feed=True)

    def _expect(self, number: int) -> int:
        if number not in self._asked:
            raise FeedError(f"sample: expected one that has been asked for, got {number}")
        return self._asked.pop(number)

    def _send(self, packet: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.send(packet)
        except BlockingIOError as error:
            raise SilentFeedError("it reads nothing") from error
