"""A feed of another node that has a good certificate, and sends what it likes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.messages import PeerHello, Request, Welcome, pack, unpack
from malletrain.client.feeding.peer_registry import PeerAddress, PeerRegistry
from malletrain.client.feeding.peer_stream import PeerStream, tls_context
from malletrain.tls.names import feed_name


@contextlib.contextmanager
def lying_feed(
    registry: Path, key: str, certificate: Path, fleet: str, answer: Callable[[Request], bytes]
) -> Iterator[list[Request]]:
    """Serve until the end of the context.

    Args:
        registry: Folder of the fleet's feeds.
        key: What they prepare.
        certificate: Certificate of the fleet.
        fleet: The fleet.
        answer: A frame that it sends for what it is asked for.

    Yields:
        What it was asked for, as it comes.
    """
    asked: list[Request] = []
    listening = socket.create_server(("127.0.0.1", 0))
    registered = PeerRegistry(registry, key, "f" * 16)
    registered.register(PeerAddress(*listening.getsockname()))

    def serve(connection: socket.socket) -> None:
        context = tls_context(certificate, server_side=True)
        stream = PeerStream(connection, context, feed_name(fleet), 1 << 20, server_side=True)
        stream.socket.settimeout(60.0)
        for frame in stream.step():
            message = unpack(frame)
            if isinstance(message, PeerHello):
                stream.send(pack(Welcome(0)))
                stream.flush()
            elif isinstance(message, Request) and message.indices:
                asked.append(message)
                stream.send(answer(message))
                stream.flush()

    def run() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, EOFError, FeedError):
                serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        registered.withdraw()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
