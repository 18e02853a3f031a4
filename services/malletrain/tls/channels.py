"""Channels that outlive certificates: once the file has been replaced, new calls use the new content."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from malletrain.tls.files import CertificateFileError, file_stamp

_log = logging.getLogger(__name__)


def renewing_channel(path: Path, connect: Callable[[], grpc.aio.Channel]) -> grpc.aio.Channel:
    """A channel of an event loop. Calls that are under way go on when the file is replaced.

    Args:
        path: The file that the channel's credentials come from.
        connect: Opens a channel with what the file holds now; may raise CertificateFileError.

    Raises:
        CertificateFileError: the file can't be used now. Later the channel stays as it is then.
    """
    return cast("grpc.aio.Channel", _AioChannel(path, connect))


def renewing_blocking_channel(path: Path, connect: Callable[[], grpc.Channel]) -> grpc.Channel:
    """As `renewing_channel`, a blocking channel for any thread."""
    return cast("grpc.Channel", _BlockingChannel(path, connect))


@dataclass(eq=False)
class _Connection:
    """A channel with credentials of one version of the file, and how many calls use it."""

    channel: Any
    stamp: object
    calls: int = 0


class ChannelMethods(ABC):
    """What makes the methods of a channel, for channels around another one: what stubs ask a channel for."""

    def _made(self, kind: str, *arguments: Any, **options: Any) -> Any:
        return self._method(kind, arguments, options)

    unary_unary = partialmethod(_made, "unary_unary")
    unary_stream = partialmethod(_made, "unary_stream")
    stream_unary = partialmethod(_made, "stream_unary")
    stream_stream = partialmethod(_made, "stream_stream")

    @abstractmethod
    def _method(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The method of a kind, such as `unary_unary`."""


class WrappedChannel(ChannelMethods):
    """Another channel, whose methods are wrapped. All else is its own.

    Without gRPC's interceptors, which replace the call objects of a channel by others with fewer methods.
    """

    def __init__(self, channel: Any, wrap: Callable[[Any, str], Any]) -> None:
        """
        Args:
            channel: The channel.
            wrap: Returns what stands for a method of it, given that and its kind, such as `unary_unary`.
        """
        self._channel = channel
        self._wrap = wrap

    def _method(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return self._wrap(getattr(self._channel, kind)(*arguments, **options), kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __enter__(self) -> Any:
        self._channel.__enter__()
        return self

    def __exit__(self, *raised: Any) -> Any:
        return self._channel.__exit__(*raised)

    async def __aenter__(self) -> Any:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._channel.__aexit__(*raised)


class _RenewingChannel(ChannelMethods):
    """A channel whose methods choose the connection at each call."""

    def __init__(self, path: Path, connect: Callable[[], Any]) -> None:
        self._path = path
        self._connect = connect
        self._lock = threading.Lock()
        self._current = self._connected(file_stamp(path))
        self._replaced: list[_Connection] = []

    def _method(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return _Method(self, lambda channel: getattr(channel, kind)(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        """What concerns the connection, such as `channel_ready`."""
        return getattr(self._current.channel, name)

    def begin(self) -> _Connection:
        """The connection of a new call, which must be ended."""
        with self._lock:
            self._renew()
            unused = [connection for connection in self._replaced if not connection.calls]
            self._replaced = [connection for connection in self._replaced if connection.calls]
            self._current.calls += 1
            connection = self._current
        for old in unused:
            self._close(old.channel)
        return connection

    def end(self, connection: _Connection) -> None:
        """Note that a call has ended. Its connection, if it was replaced, is closed when the next call begins."""
        with self._lock:
            connection.calls -= 1

    def _renew(self) -> None:
        try:
            stamp = file_stamp(self._path)
            if stamp == self._current.stamp:
                return
            renewed = self._connected(stamp)
        except CertificateFileError as error:
            _log.warning("the connection stays as it was: %s", error)
            return
        self._replaced.append(self._current)
        self._current = renewed

    def _connected(self, stamp: object) -> _Connection:
        return _Connection(self._connect(), stamp)

    def _all(self) -> list[Any]:
        with self._lock:
            return [connection.channel for connection in (*self._replaced, self._current)]

    def _close(self, channel: Any) -> None:
        """Close a channel without calls."""
        raise NotImplementedError


class _AioChannel(_RenewingChannel):
    def __init__(self, path: Path, connect: Callable[[], Any]) -> None:
        super().__init__(path, connect)
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self, grace: float | None = None) -> None:
        await asyncio.gather(*(channel.close(grace) for channel in self._all()), *self._closing)

    async def __aenter__(self) -> _AioChannel:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def _close(self, channel: Any) -> None:
        task = asyncio.ensure_future(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _BlockingChannel(_RenewingChannel):
    def close(self) -> None:
        for channel in self._all():
            channel.close()

    def __enter__(self) -> _BlockingChannel:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _close(self, channel: Any) -> None:
        channel.close()


class _Method:
    """A method of a renewing channel: callable, with `with_call` and `future` where it blocks."""

    def __init__(self, channel: _RenewingChannel, make: Callable[[Any], Any]) -> None:
        self._channel = channel
        self._make = make
        self._made: tuple[_Connection | None, Any] = (None, None)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call("__call__", arguments, options)

    def with_call(self, *arguments: Any, **options: Any) -> Any:
        return self._call("with_call", arguments, options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        return self._call("future", arguments, options)

    def _call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        connection = self._channel.begin()
        under_way = False
        try:
            call = getattr(self._on(connection), name)(*arguments, **options)
            if hasattr(call, "add_done_callback"):
                call.add_done_callback(lambda _: self._channel.end(connection))
                under_way = True
        finally:
            if not under_way:
                self._channel.end(connection)
        return call

    def _on(self, connection: _Connection) -> Any:
        made_for, method = self._made
        if made_for is not connection:
            method = self._make(connection.channel)
            self._made = (connection, method)
        return method


CONNECT_SECONDS = 5.0
"""Time limit of connecting, the TLS handshake included."""

KEEPALIVE = (
    # A process that dies closes its connections; one whose machine dies is noticed within half a minute.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
NODE_CHANNEL = (
    *KEEPALIVE,
    ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS * 1000)),
    # A channel does not wait because an earlier one could not connect.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
