"""The sidecar's stream to Monitor, and what it keeps until Monitor has acknowledged it."""

from __future__ import annotations

import abc
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Generic, TypeVar

import grpc

from malletrain.client.own_times import WorkerTimes
from malletrain.client.ring import METRIC_SLOTS, NO_STEP, RingMetric, RingRecord
from malletrain.common import environment as env
from malletrain.common.addresses import is_loopback
from malletrain.tls.channels import renewing_blocking_channel
from malletrain.tls.credentials import authority_credentials
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A site's web proxy does not lead to Monitor.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class ReporterIdentity:
    """Identity of a reporter.

    Attributes:
        job_id: The job.
        reporter_id: The reporting process.
        slots_per_node: Worker processes per node.
        lineage: Which processes of the job hand the model on in memory; empty: not known.
    """

    job_id: str
    reporter_id: str
    slots_per_node: int
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """Monitor has sent a response."""

    stream: MonitorStream
    response: monitor_pb2.ReportResponse


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream has ended.

    Attributes:
        stream: The stream.
        refused: Whether Monitor rejected what it was sent as invalid.
        reason: The reason, for people.
    """

    stream: MonitorStream
    refused: bool
    reason: str


StreamEvent = ResponseReceived | StreamEnded


class MonitorStream:
    """One `Report` stream. Its last event is `StreamEnded`."""

    def __init__(
        self, stub: monitor_pb2_grpc.MonitorServiceStub, events: SimpleQueue[StreamEvent], token: str = ""
    ) -> None:
        """Open the stream without waiting for it.

        Args:
            token: The job's token; empty: none is shown.
        """
        self._events = events
        self._outgoing: SimpleQueue[monitor_pb2.ReportRequest | None] = SimpleQueue()
        # No deadline: the stream lasts as long as the training. Keepalive and the time-out for acknowledgements end it.
        shown = (("authorization", f"Bearer {token}"),) if token else ()
        self._call = stub.Report(iter(self._outgoing.get, None), metadata=shown)
        threading.Thread(target=self._receive, name="monitor responses", daemon=True).start()

    def send(
        self,
        identity: ReporterIdentity,
        records: Sequence[RingRecord],
        dropped: int,
        feed: monitor_pb2.FeedReport | None = None,
        saves: monitor_pb2.SaveReport | None = None,
        phase: monitor_pb2.PhaseReport | None = None,
        phases_ns: Mapping[int, int] = MappingProxyType({}),
        worker_times: Sequence[WorkerTimes] = (),
        metrics: Sequence[RingMetric] = (),
    ) -> None:
        """Send records without waiting.

        Args:
            identity: Job and reporter.
            records: Records without a gap in their sequence numbers; none for a keep-alive message.
            dropped: Records lost so far.
            feed: What a feed does for the trainer; None: there is none.
            saves: How its newest save went; None: it has tried none.
            phase: The phase that the trainer is in; None: none.
            phases_ns: How long it was in phases in the step of a record, by sequence number; 0 where there is none.
            worker_times: What workers have told of their steps.
            metrics: What the script has logged.
        """
        request = monitor_pb2.ReportRequest(
            job_id=identity.job_id,
            reporter_id=identity.reporter_id,
            slots_per_node=identity.slots_per_node,
            dropped_records=dropped,
            feed=feed,
            lineage=identity.lineage,
            saves=saves,
            phase=phase,
            worker_times=[monitor_pb2.WorkerTimes(**times._asdict()) for times in worker_times],
            metric_values=map(_metric_message, metrics),
        )
        if records:
            batch = request.batch
            batch.first_sequence = records[0].sequence
            batch.unix_seconds.extend(record.unix_ns / 1e9 for record in records)
            batch.samples.extend(record.samples for record in records)
            batch.positions.extend(record.position for record in records)
            batch.workers.extend(record.workers for record in records)
            if phases_ns:
                batch.phase_seconds.extend(phases_ns.get(record.sequence, 0) / 1e9 for record in records)
        self._outgoing.put(request)

    def finish(self) -> None:
        """Say that nothing follows. Monitor stores and acknowledges what it has then, at once, and ends the stream."""
        self._outgoing.put(None)

    def close(self) -> None:
        """End the stream at once."""
        self._outgoing.put(None)
        self._call.cancel()

    def _receive(self) -> None:
        try:
            for response in self._call:
                self._events.put(ResponseReceived(self, response))
        except grpc.RpcError:
            code = self._call.code()
            refused = code is grpc.StatusCode.INVALID_ARGUMENT
            self._events.put(StreamEnded(self, refused, f"{code.name}: {self._call.details()}"))
        else:
            self._events.put(StreamEnded(self, False, "ended by Monitor"))
        self._outgoing.put(None)


def _metric_message(metric: RingMetric) -> monitor_pb2.MetricValue:
    return monitor_pb2.MetricValue(
        name=metric.name,
        number=metric.number,
        unix_seconds=metric.unix_ns / 1e9,
        step=None if metric.step == NO_STEP else metric.step,
        value=metric.value,
    )


def read_job_token(path: Path | None) -> str:
    """The job's token; empty where there is none. Errors are not raised: Monitor says what is missing."""
    try:
        return path.read_text(encoding="ascii").strip() if path is not None else ""
    except (OSError, ValueError):
        return ""


def open_channel(address: str, environ: Mapping[str, str]) -> grpc.Channel:
    """Open a channel to Monitor that reconnects quickly after an outage.

    It is without TLS only on loopback under a supervisor or agent of version 0.1, whose services have none there.

    Args:
        address: HOST:PORT of Monitor.
        environ: Environment of the process, which tells how Monitor is known.

    Raises:
        CertificateFileError: the certificates by which Monitor is known can't be read.
    """
    if is_loopback(address) and environ.get(env.MONITOR_WITH_TLS) != address:
        return grpc.insecure_channel(address, options=_OPTIONS)
    authority, name = Path(environ.get(env.MONITOR_AUTHORITY, "")), environ.get(env.MONITOR_NAME)
    options = (*_OPTIONS, ("grpc.ssl_target_name_override", name)) if name else _OPTIONS
    return renewing_blocking_channel(
        authority, lambda: grpc.secure_channel(address, authority_credentials(authority), options=options)
    )


EntryT = TypeVar("EntryT")

MAX_RECORDS = 100_000
"""Most records that are kept while Monitor can't be reached."""
MAX_VALUES = 8 * METRIC_SLOTS
"""Most logged values that are kept then."""
_MESSAGE_VALUES = 1024
"""Most values in flight: Monitor takes no more in one message."""

SEND_SECONDS = 0.1
"""Least time between two messages with records: a message costs more than the records in it."""
UNANSWERED_SECONDS = 1.0
"""Time between two if Monitor has not acknowledged the one before: it answers as often as it can bear."""


class _Unacknowledged(abc.ABC, Generic[EntryT]):
    """What is not acknowledged, oldest first: what was sent on the present stream, then what waits to be sent."""

    def __init__(self, floor: int, capacity: int) -> None:
        self.floor = floor
        self._capacity = capacity
        self._in_flight: deque[EntryT] = deque()
        self._waiting: deque[EntryT] = deque()

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting)

    def _append(self, entries: Iterable[EntryT]) -> None:
        """Add entries from the ring, in order. If there are too many, the oldest are dropped."""
        self._waiting.extend(entries)
        while len(self) > self._capacity:
            self._drop(self._in_flight or self._waiting)

    def rewind(self) -> None:
        """The stream is lost: what was sent on it and is not acknowledged has to be sent again."""
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def refuse(self) -> None:
        """Monitor has rejected what was sent: drop it, as it would be rejected again."""
        while self._in_flight:
            self._drop(self._in_flight)

    @abc.abstractmethod
    def _drop(self, entries: deque[EntryT]) -> None:
        """Drop the oldest of the entries."""


class Outbox(_Unacknowledged[RingRecord]):
    """Unacknowledged records, oldest first.

    Attributes:
        dropped: Records lost so far, here or in the ring.
        floor: Every record up to this sequence number is acknowledged or counted as dropped.
    """

    def __init__(self, floor: int = 0, dropped: int = 0, capacity: int = MAX_RECORDS) -> None:
        """Continue where an earlier sidecar ended.

        Args:
            capacity: Most records to keep.
        """
        super().__init__(floor, capacity)
        self.dropped = dropped

    @property
    def in_flight(self) -> int:
        """Records sent on the present stream and not acknowledged."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """Records that have not been sent on the present stream."""
        return len(self._waiting)

    def add(self, records: Iterable[RingRecord], lost: int) -> None:
        """Add records from the ring. If there are too many, the oldest are dropped.

        Args:
            records: By ascending sequence number, after all that were added before.
            lost: Records that were lost in the ring before the last of these.
        """
        self.dropped += lost
        self._append(records)

    def is_due(self, waited_seconds: float) -> bool:
        """Whether the records that wait may go, as long after the last message with records."""
        return waited_seconds >= (UNANSWERED_SECONDS if self._in_flight else SEND_SECONDS)

    def take(self, limit: int) -> list[RingRecord]:
        """Take the next records to send, at most `limit`, without a gap in their sequence numbers."""
        taken: list[RingRecord] = []
        while self._waiting and len(taken) < limit:
            if taken and self._waiting[0].sequence != taken[-1].sequence + 1:
                break
            taken.append(self._waiting.popleft())
        self._in_flight.extend(taken)
        return taken

    def acknowledge(self, sequence: int) -> None:
        """Remove the records up to a sequence number: Monitor has stored them."""
        for records in (self._in_flight, self._waiting):
            while records and records[0].sequence <= sequence:
                self.floor = records.popleft().sequence

    def _drop(self, entries: deque[RingRecord]) -> None:
        self.floor = entries.popleft().sequence
        self.dropped += 1


class MetricOutbox(_Unacknowledged[RingMetric]):
    """Unacknowledged logged values, oldest first.

    Attributes:
        floor: Every value up to this number is acknowledged, or dropped.
    """

    def __init__(self, floor: int = 0, capacity: int = MAX_VALUES) -> None:
        """Continue where an earlier sidecar ended.

        Args:
            capacity: Most values to keep.
        """
        super().__init__(floor, capacity)

    @property
    def may_send(self) -> bool:
        """Whether values wait, and Monitor has acknowledged enough of those before."""
        return bool(self._waiting) and len(self._in_flight) < _MESSAGE_VALUES

    def add(self, values: Iterable[RingMetric]) -> None:
        """Add values from the ring, in order. If there are too many, the oldest are dropped."""
        self._append(values)

    def take(self) -> list[RingMetric]:
        """Take the next values to send."""
        count = min(len(self._waiting), _MESSAGE_VALUES - len(self._in_flight))
        taken = [self._waiting.popleft() for _ in range(count)]
        self._in_flight.extend(taken)
        return taken

    def acknowledge(self, number: int) -> None:
        """Remove the values up to a number: Monitor needs them no more."""
        for values in (self._in_flight, self._waiting):
            while values and values[0].number <= number:
                self._drop(values)

    def clear(self) -> None:
        """Drop everything."""
        self.acknowledge(self._waiting[-1].number if self._waiting else 0)
        self.refuse()

    def _drop(self, entries: deque[RingMetric]) -> None:
        self.floor = max(self.floor, entries.popleft().number)
