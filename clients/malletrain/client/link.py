"""The sidecar's stream to Monitor: two threads of gRPC on one side, a queue of events on the other."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue

import grpc

from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A proxy for the web, as computing centres set it, does not lead to Monitor.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Received:
    """Monitor has said something."""

    link: Link
    response: monitor_pb2.ReportResponse


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream has ended.

    Attributes:
        link: Which.
        refused: Monitor found what it was sent invalid.
        reason: Why, for people.
    """

    link: Link
    refused: bool
    reason: str


Event = Received | Ended


class Link:
    """One `Report` stream; `Ended` is its last event."""

    def __init__(self, stub: monitor_pb2_grpc.MonitorServiceStub, events: SimpleQueue[Event]) -> None:
        """Open the stream without waiting for it."""
        self._events = events
        self._outgoing: SimpleQueue[monitor_pb2.ReportRequest | None] = SimpleQueue()
        # No deadline: the stream lasts as long as the training. Keepalive and the time-out of acknowledgements end it.
        self._call = stub.Report(iter(self._outgoing.get, None))
        threading.Thread(target=self._receive, name="monitor responses", daemon=True).start()

    def send(self, request: monitor_pb2.ReportRequest) -> None:
        """Send a message without waiting."""
        self._outgoing.put(request)

    def close(self) -> None:
        """End the stream at once."""
        self._outgoing.put(None)
        self._call.cancel()

    def _receive(self) -> None:
        try:
            for response in self._call:
                self._events.put(Received(self, response))
        except grpc.RpcError:
            code = self._call.code()
            refused = code is grpc.StatusCode.INVALID_ARGUMENT
            self._events.put(Ended(self, refused, f"{code.name}: {self._call.details()}"))
        else:
            self._events.put(Ended(self, False, "ended by Monitor"))
        self._outgoing.put(None)


def open_channel(address: str) -> grpc.Channel:
    """A channel to Monitor that finds it again quickly after an outage."""
    return grpc.insecure_channel(address, options=_OPTIONS)
