"""A group's connection to the feed of another node: asks it for the samples that it owns."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from malletrain.client.feeding.errors import FeedError, NotSharingError
from malletrain.client.feeding.messages import (
    SAMPLE_HEAD_BYTES,
    Hello,
    PeerHello,
    PeerSample,
    Refused,
    Unable,
    Welcome,
    pack,
    requests,
    unpack_from_peer,
)
from malletrain.client.feeding.peer_registry import PeerAddress, PeerSettings
from malletrain.client.feeding.peer_share import PeerShare
from malletrain.client.feeding.peer_stream import PeerStream, tls_context
from malletrain.client.feeding.schedule import Task
from malletrain.client.warn_once import describe
from malletrain.tls.files import CertificateFileError

_OPENING_SECONDS = 5.0
"""How long the other feed has to accept the connection and to answer. Nobody waits for that."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who this feed is for others.

    Attributes:
        settings: How it finds them, and proves who it is.
        hello: What it prepares; the position is that of each connection.
        max_sample_bytes: Bytes of the largest sample that it has room for.
        seconds: How long trainings may wait for another feed.
    """

    settings: PeerSettings
    hello: Hello
    max_sample_bytes: int
    seconds: float


class PeerLink:
    """One connection.

    Attributes:
        name: The other feed.
        address: Where it listens.
        share: What it has been asked for.
        is_open: Whether it shares samples.
        error: Why it does not any more; None: it does, or may.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        name: str,
        address: PeerAddress,
        position: int,
        now: float,
        selector: selectors.BaseSelector,
        take: Callable[[Task, bytes | None], None],
    ) -> None:
        """Begin to connect. Nothing is waited for.

        Args:
            now: Monotonic time in seconds.
            take: Called with a sample, and its content; None: it has to be prepared here.
        """
        self.name, self.address, self._identity = name, address, identity
        self.share = PeerShare(identity.seconds, position)
        self.is_open = False
        self.error: Exception | None = None
        self._give_up_at = now + _OPENING_SECONDS
        self._selector, self._take = selector, take
        self._new: list[Task] = []
        self._told: tuple[int, bool] | None = None
        self._stream: PeerStream | None = None
        self._socket = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        error_number = self._socket.connect_ex(tuple(address))
        if error_number not in (0, errno.EINPROGRESS):
            self.error = OSError(error_number, os.strerror(error_number))
        self._selector.register(self._socket, selectors.EVENT_WRITE, self._connected)

    @property
    def descriptor(self) -> int:
        """What processes forked from the feed must not keep open."""
        return self._socket.fileno()

    def ask(self, task: Task) -> None:
        """Ask for a sample, with the next `tell`."""
        self.share.ask(task)
        self._new.append(task)

    def tell(self, position: int, now: float, *, waiting: bool) -> None:
        """Tell the other feed where the trainings here are, and what they want of it.

        Args:
            position: What no training here is behind.
            now: Monotonic time in seconds.
            waiting: Whether a training waits for what it was asked for.
        """
        if self.error is None and not self.is_open and now >= self._give_up_at:
            self.error = FeedError("it has not answered")
        if self.error is not None or not self.is_open or self._stream is None:
            return
        told = self.share.position(position), waiting
        if not self._new and told == self._told:
            return
        new, self._new, self._told = sorted(self._new), [], told
        for request in requests(told[0], _runs(new), waiting=waiting):
            self._stream.send(pack(request))
        self._step()

    def close(self) -> list[Task]:
        """End the connection. What is to be prepared here instead, in order."""
        self._unregister()
        self._socket.close()
        return self.share.take_back()

    def _connected(self, _: int) -> None:
        """The connection has been made, or not."""
        identity = self._identity
        self._unregister()
        try:
            if error_number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error_number, os.strerror(error_number))
            context = tls_context(Path(identity.settings.certificate), server_side=False)
            max_frame_bytes = identity.max_sample_bytes + SAMPLE_HEAD_BYTES
            self._stream = PeerStream(
                self._socket, context, identity.settings.fleet, max_frame_bytes, server_side=False
            )
        except (OSError, CertificateFileError, ValueError) as error:
            self._lose(error)
            return
        self._socket = self._stream.socket
        self._selector.register(self._socket, self._stream.events, self._step)
        hello = identity.hello._replace(position=self.share.told)
        self._stream.send(pack(PeerHello(hello, identity.settings.name, self.name)))
        self._step()

    def _step(self, _: int = 0) -> None:
        if self.error is not None or self._stream is None:
            return
        try:
            for frame in self._stream.step():
                self._handle(frame)
            self._selector.modify(self._socket, self._stream.events, self._step)
        except EOFError:
            self._lose(FeedError("it has ended"))
        except (FeedError, OSError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Nothing is expected any more; whoever has this link closes it."""
        self.error = self.error or error
        self.is_open = False

    def _unregister(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._socket)

    def _handle(self, frame: bytes) -> None:
        message = unpack_from_peer(frame)
        match message:
            case Welcome() if not self.is_open:
                self.is_open = True
            case PeerSample(number, index, content) if self.is_open:
                self._answer(number, index, content)
            case Unable(number) if self.is_open:
                self._answer(number, None, None)
            case Refused(reason):
                raise NotSharingError(reason)
            case _:
                raise FeedError(f"message: expected samples, got {type(message).__name__}")

    def _answer(self, number: int, index: int | None, content: bytes | None) -> None:
        task = self.share.answer(number)
        if task is None:
            return  # it was too late, and is prepared here
        if index is not None and index != task.dataset_index:
            self._take(task, None)
            raise FeedError(f"sample {number}: expected dataset index {task.dataset_index}, got {index}")
        self._take(task, content)

    def __str__(self) -> str:
        """The other feed, for people."""
        return f"feed {self.name} at {self.address.host}:{self.address.port}"

    @property
    def reason(self) -> str:
        """Why it is lost, in words."""
        if self.error is None:
            return "it has kept trainings here waiting for what they were to send it"
        return str(self.error) if isinstance(self.error, FeedError) else describe(self.error)


def _runs(tasks: Iterable[Task]) -> Iterator[tuple[int, list[int]]]:
    """Tasks whose numbers follow each other: the first number, and the dataset indices."""
    first, indices = 0, list[int]()
    for number, index in tasks:
        if indices and number != first + len(indices):
            yield first, indices
            indices = []
        if not indices:
            first = number
        indices.append(index)
    if indices:
        yield first, indices
