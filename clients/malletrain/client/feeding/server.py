"""The event loop of a feed: between trainings and processes that prepare samples, as `schedule` decides."""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.messages import (
    LONGEST,
    MOST_PLACES,
    VERSION,
    Hello,
    Message,
    Ready,
    ReadyPlace,
    Refused,
    Request,
    Unable,
    Welcome,
    pack,
    unpack,
)
from malletrain.client.feeding.preparing import PreparedSample, PreparingProcess, TaskOutcome
from malletrain.client.feeding.private_folder import check_peer
from malletrain.client.feeding.ring_memory import HEAD_BYTES, FeedRingWriter
from malletrain.client.feeding.schedule import Delivery, FeedSchedule, Task
from malletrain.client.feeding.seeding import Preparation
from malletrain.client.feeding.source import FeedSource

_TICK_SECONDS = 0.1
_MOST_CONNECTIONS = 256
_MOST_UNSENT = 4096
_MOST_LOSSES = 5
"""How many of the processes may end by themselves before the feed gives up."""


@dataclass(slots=True)
class _Connection:
    number: int
    socket: socket.socket
    welcome: bool = False
    unsent: deque[bytes] = field(default_factory=deque)


class FeedServer:
    """Serves trainings until none has been connected for some time.

    Attributes:
        asked_to_end: Set it to end.
    """

    def __init__(
        self, listening: socket.socket, source: FeedSource, preparation: Preparation, limits: FeedLimits, workers: int
    ) -> None:
        """Start the processes.

        Args:
            listening: Where trainings connect.
            source: What is prepared.
            preparation: How samples are prepared.
            limits: Limits of the feed.
            workers: How many processes prepare samples, at least 1.

        Raises:
            OSError: there is no memory, or a process can't be forked.
        """
        self._listening, self._source, self._preparation, self._limits = listening, source, preparation, limits
        self.asked_to_end = False
        self._schedule = FeedSchedule(limits)
        self._ring = FeedRingWriter(limits.memory_bytes)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._accepted = 0
        self._held: list[PreparedSample] = []
        self._losses = 0
        self._processes: list[PreparingProcess] = []
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        for _ in range(workers):
            self._start_process()

    def run(self, may_end: Callable[[], bool]) -> None:
        """Serve.

        Args:
            may_end: Called when no training has been connected for `linger_seconds`; whether that is the end.

        Raises:
            FeedError: samples of this dataset can't be shared, or can't be prepared.
        """
        alone_since = time.monotonic()
        try:
            while not self.asked_to_end:
                for key, events in self._selector.select(_TICK_SECONDS):
                    key.data(events)
                self._turn()
                now = time.monotonic()
                if self._connections:
                    alone_since = now
                elif now - alone_since >= self._limits.linger_seconds and may_end():
                    return
        except FeedError as error:
            refuse_all(self._listening, error)
            for connection in list(self._connections.values()):
                self._refuse(connection, error)
            raise
        finally:
            for process in self._processes:
                process.end()

    # -- trainings ---------------------------------------------------------------------------------------------------

    def _accept(self, _: int) -> None:
        for connection in accept_all(self._listening):
            if len(self._connections) >= _MOST_CONNECTIONS:
                _dismiss(connection, FeedError(f"connections: expected at most {_MOST_CONNECTIONS}"))
                continue
            self._accepted += 1
            known = self._connections[self._accepted] = _Connection(self._accepted, connection)

            def serve(_: int, known: _Connection = known) -> None:
                self._serve(known)

            self._selector.register(connection, selectors.EVENT_READ, serve)

    def _serve(self, connection: _Connection) -> None:
        """Read what a training has sent, and send what it could not take before."""
        try:
            while connection.number in self._connections:
                packet = connection.socket.recv(LONGEST + 1)
                if not packet:
                    return self._close(connection)
                self._handle(connection, unpack(packet))
        except BlockingIOError:
            self._flush(connection)
        except OSError:
            self._close(connection)
        except FeedError as error:
            self._refuse(connection, error)

    def _handle(self, connection: _Connection, message: Message) -> None:
        match message:
            case Hello() if not connection.welcome:
                self._check(message)
                connection.welcome = True
                packet = pack(Welcome(self._limits.memory_bytes))
                socket.send_fds(connection.socket, [packet], [self._ring.descriptor])
            case Request(position, first, indices, waiting) if connection.welcome:
                if indices and max(indices) >= self._source.size:
                    raise FeedError(f"index: expected one below {self._source.size}, got {max(indices)}", final=True)
                tasks = (Task(number, index) for number, index in enumerate(indices, start=first))
                self._schedule.request(connection.number, position, tasks, waiting=waiting)
            case _:
                raise FeedError(f"message: expected a greeting and then requests, got {type(message).__name__}")

    def _check(self, hello: Hello) -> None:
        for name, expected, got in (
            ("version", VERSION, hello.version),
            ("key", self._source.key, hello.key),
            ("length of the dataset", self._source.size, hello.length),
            ("type of the dataset", self._source.kind, hello.kind),
        ):
            if expected != got:
                raise FeedError(f"{name}: expected {expected}, as the feed has, got {got}", final=True)
        self._schedule.check_near(hello.position)

    def _send(self, connection: _Connection, message: Message) -> None:
        connection.unsent.append(pack(message))
        if len(connection.unsent) > _MOST_UNSENT:
            self._close(connection)
        else:
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.unsent:
                connection.socket.send(connection.unsent[0])
                connection.unsent.popleft()
        except BlockingIOError:
            return  # tried again at each turn
        except OSError:
            self._close(connection)

    def _refuse(self, connection: _Connection, error: FeedError) -> None:
        _log(f"training {connection.number} is refused: {error}")
        self._forget(connection)
        _dismiss(connection.socket, error)

    def _close(self, connection: _Connection) -> None:
        self._forget(connection)
        connection.socket.close()

    def _forget(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self._selector.unregister(connection.socket)
            self._schedule.remove(connection.number)

    # -- samples -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Do what has become possible."""
        for number in self._schedule.overdue(time.monotonic()):
            stall = self._limits.stall_seconds
            # It is told before anything that it may be copying gives way.
            self._refuse(self._connections[number], FeedError(f"it has kept others waiting for {stall:g} s"))
        held, self._held = sorted(self._held), []
        for prepared in held:
            self._put(prepared)
        free = [process for process in self._processes if process.is_free]
        while free and (task := self._schedule.next_task()) is not None:
            process = min(free, key=lambda each: len(each.tasks))
            try:
                process.give(task)
            except OSError:
                self._schedule.fail(task.number, "the process that prepares it has ended")
                break  # the selector finds out, too
            free = [each for each in free if each.is_free]
        self._erase()
        self._deliver(self._schedule.take_deliveries())
        for connection in list(self._connections.values()):
            if connection.unsent:
                self._flush(connection)

    def _deliver(self, deliveries: Iterable[Delivery]) -> None:
        places: dict[int, list[ReadyPlace]] = defaultdict(list)
        for each in deliveries:
            if each.place is None:
                if connection := self._connections.get(each.consumer):
                    self._send(connection, Unable(each.number, each.reason))
            else:
                length = each.place.length - HEAD_BYTES
                places[each.consumer].append(ReadyPlace(each.number, each.dataset_index, each.place.offset, length))
        for consumer, found in places.items():
            for start in range(0, len(found), MOST_PLACES):
                if connection := self._connections.get(consumer):
                    self._send(connection, Ready(found[start : start + MOST_PLACES]))

    def _put(self, prepared: PreparedSample) -> None:
        number, index = prepared.task
        place = self._schedule.place(number, len(prepared.content) + HEAD_BYTES)
        self._erase()
        if place is not None:
            self._ring.write(place.offset, number, index, prepared.content)
            self._schedule.announce(number)
        elif self._schedule.is_preparing(number):
            self._held.append(prepared)

    def _erase(self) -> None:
        for place in self._schedule.take_shed():
            self._ring.erase(place.offset)

    # -- processes ---------------------------------------------------------------------------------------------------

    def _start_process(self) -> None:
        own: Sequence[int] = [
            self._listening.fileno(),
            self._ring.descriptor,
            *(each.socket.fileno() for each in self._connections.values()),
            *(each.connection.fileno() for each in self._processes),
        ]
        process = PreparingProcess(self._preparation, own)
        self._processes.append(process)
        self._selector.register(process.connection, selectors.EVENT_READ, lambda _: self._collect(process))

    def _collect(self, process: PreparingProcess) -> None:
        try:
            for prepared in process.receive():
                self._take(prepared)
        except EOFError:
            self._replace(process)

    def _take(self, prepared: PreparedSample) -> None:
        match prepared.outcome:
            case TaskOutcome.PREPARED:
                self._put(prepared)
            case TaskOutcome.RAISED:
                _log(f"sample {prepared.task.number} (dataset index {prepared.task.dataset_index}): {prepared.reason}")
                self._schedule.fail(prepared.task.number, prepared.reason)
            case TaskOutcome.UNSUITABLE:
                raise FeedError(f"{self._source.spec}: {prepared.reason}", final=True)

    def _replace(self, process: PreparingProcess) -> None:
        self._selector.unregister(process.connection)
        self._processes.remove(process)
        process.end()
        for task in process.tasks:
            self._schedule.fail(task.number, "the process that prepared it has ended")
        self._losses += 1
        _log(f"process {process.pid}, which prepares samples, has ended")
        if self._losses > _MOST_LOSSES:
            raise FeedError(f"{self._source.spec}: processes that prepare samples end by themselves", final=True)
        self._start_process()


def accept_all(listening: socket.socket) -> Iterable[socket.socket]:
    """Accept who waits, and is of this account."""
    while True:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return
        except ConnectionAbortedError:
            continue
        connection.setblocking(False)
        try:
            check_peer(connection)
        except OSError as error:
            _log(str(error))
            connection.close()
            continue
        yield connection


def refuse_all(listening: socket.socket, error: FeedError) -> None:
    """Refuse who waits to be connected."""
    listening.setblocking(False)
    for connection in accept_all(listening):
        _dismiss(connection, error)


def _dismiss(connection: socket.socket, error: FeedError) -> None:
    """Say why, and close. What the other side has sent is read first: else its kernel would not show it the reason."""
    with contextlib.suppress(OSError):
        connection.send(pack(Refused(str(error), error.final)))
    with contextlib.suppress(OSError):
        while connection.recv(LONGEST + 1):
            pass
    connection.close()


def _log(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} feed: {message}", file=sys.stderr, flush=True)
