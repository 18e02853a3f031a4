"""Serves the feeds of a fleet's other nodes: they ask for samples as trainings do, and get them over the network."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.group import FeedGroup, log
from malletrain.client.feeding.messages import (
    MAX_PACKET_BYTES,
    Hello,
    PeerHello,
    Refused,
    Request,
    Unable,
    Welcome,
    pack,
    sample_head,
    unpack,
)
from malletrain.client.feeding.peer_link import PeerIdentity
from malletrain.client.feeding.peer_registry import PeerAddress, PeerRegistry, PeerSettings
from malletrain.client.feeding.peer_share import MAX_ASKED
from malletrain.client.feeding.peer_stream import PeerStream, tls_context
from malletrain.client.feeding.peering import KnownPeers
from malletrain.client.feeding.schedule import Delivery, Task
from malletrain.client.feeding.source import FeedSource
from malletrain.client.warn_once import WarnOnce, describe
from malletrain.tls.files import CertificateFileError

_LOOK_SECONDS = 1.0
_GREETING_SECONDS = 5.0
"""How long a connection may last before the other side has proved who it is, and has greeted."""
_MAX_STRANGERS = 16
"""Connections at a time that have not greeted."""
_MAX_CONNECTIONS = 256
_BACKLOG = 64


@dataclass(slots=True)
class _Peer:
    number: int
    stream: PeerStream
    since: float
    name: str = ""
    group: FeedGroup | None = None
    deliveries: deque[Delivery] = field(default_factory=deque)


class PeerService:
    """Listens for other feeds, and knows where they listen.

    Attributes:
        known: What groups need to know of them.
    """

    def __init__(
        self,
        settings: PeerSettings,
        identity: PeerIdentity,
        source: FeedSource,
        selector: selectors.BaseSelector,
        group_near: Callable[[int], FeedGroup],
        next_number: Callable[[], int],
    ) -> None:
        """Listen, and tell other feeds where.

        Args:
            group_near: The group with trainings near a position. May raise FarAwayError.

        Raises:
            OSError: it can't listen, or can't tell others.
        """
        self._settings, self._source, self._selector = settings, source, selector
        self._group_near, self._next_number = group_near, next_number
        self.known = KnownPeers(identity)
        self._warnings = WarnOnce()
        self._peers: dict[int, _Peer] = {}
        self._looked_at = -_LOOK_SECONDS
        self._registry = PeerRegistry(Path(settings.folder), source.key, settings.name)
        self._listening = _listen(settings.address)
        try:
            host, port = self._listening.getsockname()[:2]
            self._registry.register(PeerAddress(host, port))
            selector.register(self._listening, selectors.EVENT_READ, self._accept)
        except BaseException:
            self._listening.close()
            raise

    @property
    def descriptors(self) -> list[int]:
        """What processes forked from the feed must not keep open."""
        return [self._listening.fileno(), *(peer.stream.socket.fileno() for peer in self._peers.values())]

    def close(self) -> None:
        """Serve nobody any more."""
        self._registry.withdraw()
        for peer in list(self._peers.values()):
            self._close(peer)
        self._selector.unregister(self._listening)
        self._listening.close()

    def turn(self, now: float) -> None:
        """Send what has become available, and look for other feeds now and then.

        Args:
            now: Monotonic time in seconds.
        """
        for peer in list(self._peers.values()):
            if peer.group is None and now - peer.since > _GREETING_SECONDS:
                self._close(peer)
            elif peer.group is not None and peer.group.empty_since is not None:
                self.refuse(peer.number, FeedError("no training is here any more"))
            elif peer.group is not None and not peer.group.shares:
                self.refuse(peer.number, FeedError("order: expected that of the trainings here"))
            else:
                self._step(peer)
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            try:
                self.known.addresses = self._registry.others()
            except OSError as error:
                self._warnings.warn("registry", f"other feeds are not found: {describe(error)}")

    def deliver(self, delivery: Delivery) -> bool:
        """Send what has become available to the feed that has asked for it; whether it is one."""
        peer = self._peers.get(delivery.consumer)
        if peer is None:
            return False
        peer.deliveries.append(delivery)
        return True

    def refuse(self, number: int, error: FeedError) -> bool:
        """Serve a feed no more; whether there is one of this number."""
        peer = self._peers.get(number)
        if peer is None:
            return False
        if peer.group is not None:
            log(f"feed {peer.name} of another node is refused: {error}")
        else:  # it tries again every few seconds
            self._warnings.warn(f"refused {type(error).__name__}", f"a feed of another node is refused: {error}")
        with contextlib.suppress(OSError, EOFError, FeedError):
            if peer.stream.is_open and peer.stream.is_idle:  # else within a frame
                peer.stream.send(pack(Refused(str(error), error.final)))
                for _ in peer.stream.step():
                    pass
        self._close(peer)
        return True

    def name_of(self, number: int) -> str:
        """Name of the feed with a number; empty: there is none."""
        peer = self._peers.get(number)
        return "" if peer is None else peer.name

    def _accept(self, _: int) -> None:
        while True:
            try:
                connection, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._warnings.warn("accept", f"another feed can't connect: {describe(error)}")
                return
            strangers = sum(peer.group is None for peer in self._peers.values())
            if strangers >= _MAX_STRANGERS or len(self._peers) >= _MAX_CONNECTIONS:
                connection.close()
                continue
            try:
                context = tls_context(Path(self._settings.certificate), server_side=True)
                stream = PeerStream(connection, context, self._settings.fleet, MAX_PACKET_BYTES, server_side=True)
            except (OSError, CertificateFileError, ValueError) as error:
                self._warnings.warn("certificate", f"another feed can't connect: {describe(error)}")
                connection.close()
                continue
            peer = _Peer(self._next_number(), stream, time.monotonic())
            self._peers[peer.number] = peer

            def step(_: int, peer: _Peer = peer) -> None:
                self._step(peer)

            self._selector.register(stream.socket, stream.events, step)

    def _step(self, peer: _Peer) -> None:
        """Read what another feed has sent, and send what there is for it."""
        if self._peers.get(peer.number) is not peer:
            return
        try:
            for frame in peer.stream.step():
                self._handle(peer, frame)
            while peer.deliveries and peer.stream.is_idle:
                self._send(peer, peer.deliveries.popleft())
                for frame in peer.stream.step():
                    self._handle(peer, frame)
        except FeedError as error:
            self.refuse(peer.number, error)
        except (OSError, EOFError) as error:
            if not peer.stream.is_open:
                self._warnings.warn("stranger", f"somebody without a certificate of the fleet: {describe(error)}")
            self._close(peer)
        else:
            data = self._selector.get_key(peer.stream.socket).data
            self._selector.modify(peer.stream.socket, peer.stream.events, data)

    def _send(self, peer: _Peer, delivery: Delivery) -> None:
        content = None if peer.group is None else peer.group.read(delivery)
        if content is None:
            reason = delivery.reason or "it has given way"
            peer.stream.send(pack(Unable(delivery.number, reason)))
        else:
            peer.stream.send(sample_head(delivery.number, delivery.dataset_index), content)

    def _handle(self, peer: _Peer, frame: bytes) -> None:
        message = unpack(frame)
        match message:
            case PeerHello(hello, sender, receiver) if peer.group is None:
                self._check(hello, receiver)
                group = self._group_near(hello.position)
                group.join_peer(peer.number, hello.position)
                peer.group, peer.name = group, sender
                peer.stream.send(pack(Welcome(0)))
            case Request(position, first, indices, waiting) if peer.group is not None:
                if indices and max(indices) >= self._source.size:
                    raise FeedError(f"index: expected one below {self._source.size}, got {max(indices)}", final=True)
                if len(peer.deliveries) + len(indices) > MAX_ASKED:
                    raise FeedError(f"request: expected at most {MAX_ASKED} samples at a time, got more")
                tasks = [Task(number, index) for number, index in enumerate(indices, start=first)]
                peer.group.request_for_peer(peer.number, position, tasks, waiting=waiting)
            case _:
                raise FeedError(f"message: expected a greeting and then requests, got {type(message).__name__}")

    def _check(self, hello: Hello, receiver: str) -> None:
        own = self.known.identity.hello
        for name, expected, got in (
            ("receiver", self._settings.name, receiver),
            *((name, getattr(own, name), getattr(hello, name)) for name in ("version", "key", "length", "kind")),
        ):
            if expected != got:
                raise FeedError(f"{name}: expected {expected}, as the feed has, got {got}")

    def _close(self, peer: _Peer) -> None:
        if self._peers.pop(peer.number, None) is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.stream.socket)
            if peer.group is not None:
                peer.group.leave(peer.number, time.monotonic())
            peer.stream.close()


def _listen(address: str) -> socket.socket:
    """Listen on any free port of this node's address.

    Raises:
        OSError: it is none of this node's.
    """
    family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind)
    try:
        listening.bind(place)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
