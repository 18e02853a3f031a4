"""The event loop of a feed: between trainings and processes that prepare samples, as `schedule` decides."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.client.feeding.errors import FeedError, MovedError
from malletrain.client.feeding.group import FeedGroup, log
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.messages import (
    MAX_PACKET_BYTES,
    MAX_PLACES,
    VERSION,
    Costs,
    Hello,
    Message,
    Ready,
    ReadyPlace,
    Refused,
    Request,
    Unable,
    Welcome,
    pack,
    rates_of,
    unpack,
)
from malletrain.client.feeding.peer_link import PeerIdentity
from malletrain.client.feeding.peer_registry import PeerSettings
from malletrain.client.feeding.peer_service import PeerService
from malletrain.client.feeding.private_folder import check_peer
from malletrain.client.feeding.ring_memory import HEAD_BYTES
from malletrain.client.feeding.schedule import Delivery, FarAwayError, Task
from malletrain.client.feeding.seeding import Preparation
from malletrain.client.feeding.sizing import GroupSizing, process_of, usable_cores
from malletrain.client.feeding.source import FeedSource

_TICK_SECONDS = 0.1
_MAX_CONNECTIONS = 256
_MAX_UNSENT = 4096
_NEWS_SECONDS = 1.0
"""How often trainings are told what samples cost, and whether others have come near."""


@dataclass(slots=True)
class _Connection:
    number: int
    socket: socket.socket
    process: int
    group: FeedGroup | None = None
    told: Costs | None = None
    unsent: deque[bytes] = field(default_factory=deque)


class FeedServer:
    """Serves trainings until none has been connected for some time.

    Attributes:
        asked_to_end: Set it to end.
    """

    def __init__(
        self,
        listening: socket.socket,
        source: FeedSource,
        preparation: Preparation,
        limits: FeedLimits,
        workers: int | None,
        peers: PeerSettings | None = None,
        memory: Path | None = None,
    ) -> None:
        """Start the processes.

        Args:
            workers: How many processes prepare samples for a group of trainings, at least 1; None: as many as it needs.
            peers: How feeds of other nodes are found; None: this one shares with none.
            memory: Where feeds of this data set remember what they have measured; None: nowhere.

        Raises:
            OSError: there is no memory, or a process can't be forked.
        """
        self._listening, self._source, self._preparation, self._limits = listening, source, preparation, limits
        self.asked_to_end = False
        self._sizing = GroupSizing(limits.calm_seconds, memory) if workers is None else None
        self._workers = workers or 1
        self._cores = usable_cores()
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._accepted = 0
        self._told_at = 0.0
        self._groups: list[FeedGroup] = []
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._peers = None if peers is None else self._open_peers(peers)
        self._open_group()

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
        except FeedError as cause:
            error = FeedError(f"{self._source.spec}: {cause}", final=cause.final)
            refuse_all(self._listening, error)
            for connection in list(self._connections.values()):
                self._refuse(connection, error)
            raise error from cause
        finally:
            if self._sizing is not None:
                self._sizing.remember(time.monotonic())
            for group in self._groups:
                group.close()
            if self._peers is not None:
                self._peers.close()

    # -- trainings ---------------------------------------------------------------------------------------------------

    def _accept(self, _: int) -> None:
        for connection in accept_all(self._listening):
            if len(self._connections) >= _MAX_CONNECTIONS:
                _dismiss(connection, FeedError(f"connections: expected at most {_MAX_CONNECTIONS}"))
                continue
            number = self._next_number()
            known = self._connections[number] = _Connection(number, connection, process_of(connection))

            def serve(_: int, known: _Connection = known) -> None:
                self._serve(known)

            self._selector.register(connection, selectors.EVENT_READ, serve)

    def _serve(self, connection: _Connection) -> None:
        """Read what a training has sent, and send what it could not take before."""
        try:
            while connection.number in self._connections:
                packet = connection.socket.recv(MAX_PACKET_BYTES + 1)
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
            case Hello() if connection.group is None:
                self._check(message)
                connection.group = self._group_for(message.position)
                connection.group.join(connection.number, message.position)
                packet = pack(Welcome(self._limits.memory_bytes))
                socket.send_fds(connection.socket, [packet], [connection.group.descriptor])
            case Request(position, first, indices, waiting) if connection.group is not None:
                if indices and max(indices) >= self._source.size:
                    raise FeedError(f"index: expected one below {self._source.size}, got {max(indices)}", final=True)
                tasks = (Task(number, index) for number, index in enumerate(indices, start=first))
                connection.group.request(connection.number, position, tasks, waiting=waiting)
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

    def _send(self, connection: _Connection, message: Message) -> None:
        connection.unsent.append(pack(message))
        if len(connection.unsent) > _MAX_UNSENT:
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
        log(f"training {connection.number} is refused: {error}")
        self._forget(connection)
        _dismiss(connection.socket, error)

    def _close(self, connection: _Connection) -> None:
        self._forget(connection)
        connection.socket.close()

    def _forget(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self._selector.unregister(connection.socket)
            if connection.group is not None:
                connection.group.leave(connection.number, time.monotonic())

    # -- samples -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Do what has become possible."""
        now = time.monotonic()
        for group in self._groups:
            for number in group.overdue(now):
                self._drop(number, group, now)
            self._deliver(group.turn(now))
        if self._peers is not None:
            self._peers.turn(now)
        if self._sizing is not None:
            self._sizing.look(now, self._processes_by_group())
        if now >= self._told_at + _NEWS_SECONDS:
            self._told_at = now
            self._tell_costs(now)
            self._join_groups()
        for connection in list(self._connections.values()):
            if connection.unsent:
                self._flush(connection)
        self._close_empty_groups(now)

    def _processes_by_group(self) -> dict[FeedGroup, list[int]]:
        """Groups that have trainings, with the processes of these."""
        processes: dict[FeedGroup, list[int]] = {group: [] for group in self._groups if group.trainings}
        for connection in self._connections.values():
            if connection.group in processes:
                processes[connection.group].append(connection.process)
        return processes

    def _drop(self, number: int, group: FeedGroup, now: float) -> None:
        """Drop who keeps others waiting. It is told before anything that it may be copying gives way."""
        error = FeedError(f"it has kept others waiting for {self._limits.stall_seconds:g} s")
        if connection := self._connections.get(number):
            self._refuse(connection, error)
        elif self._peers is not None:
            name = self._peers.name_of(number)
            self._peers.refuse(number, error)
            group.drop_peer(name, now)

    def _deliver(self, deliveries: Iterable[Delivery]) -> None:
        places: dict[int, list[ReadyPlace]] = defaultdict(list)
        for each in deliveries:
            if self._peers is not None and self._peers.deliver(each):
                continue
            if each.place is None:
                if connection := self._connections.get(each.consumer):
                    self._send(connection, Unable(each.number, each.reason))
            else:
                length = each.place.length - HEAD_BYTES
                places[each.consumer].append(ReadyPlace(each.number, each.dataset_index, each.place.offset, length))
        for consumer, ready in places.items():
            for start in range(0, len(ready), MAX_PLACES):
                if connection := self._connections.get(consumer):
                    self._send(connection, Ready(ready[start : start + MAX_PLACES]))

    def _tell_costs(self, now: float) -> None:
        """Tell trainings what samples cost here."""
        for connection in list(self._connections.values()):
            group = connection.group
            if group is None or connection.unsent or not (seconds := group.costs.cpu_seconds):
                continue  # who reads nothing now is told later
            most = min(group.processes, self._cores) if self._sizing is None else self._sizing.limit_of(group)
            costs = Costs(round(1e9 * seconds), most, group.processes, rates_of(group.supply.measured(now)))
            if connection.told is None or not costs.is_like(connection.told):
                connection.told = costs
                self._send(connection, costs)

    # -- feeds of other nodes ----------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._accepted += 1
        return self._accepted

    def _open_peers(self, settings: PeerSettings) -> PeerService | None:
        source, limits = self._source, self._limits
        hello = Hello(source.key, source.size, source.kind, 0)
        identity = PeerIdentity(settings, hello, limits.memory_bytes, limits.peer_seconds)
        try:
            return PeerService(settings, identity, source, self._selector, self._group_for_peer, self._next_number)
        except OSError as error:
            log(f"samples are not shared with other nodes: {error}")
            return None

    def _group_for_peer(self, position: int) -> FeedGroup:
        """The group whose trainings are near those of another node.

        Raises:
            FarAwayError: there is none.
        """
        if near := self._used_group_near(position):
            return near
        raise FarAwayError(f"position: expected one where trainings of this node are, got {position}")

    # -- groups ------------------------------------------------------------------------------------------------------

    def _open_group(self) -> FeedGroup:
        group = FeedGroup(
            self._preparation,
            self._limits,
            self._workers if self._sizing is None else self._sizing.begin,
            self._selector,
            self._descriptors,
            time.monotonic(),
            None if self._peers is None else self._peers.known,
            None if self._sizing is None else self._sizing.rates,
        )
        self._groups.append(group)
        return group

    def _descriptors(self) -> list[int]:
        own = [self._listening.fileno(), *(each.socket.fileno() for each in self._connections.values())]
        own += [] if self._peers is None else self._peers.descriptors
        return own + [descriptor for group in self._groups for descriptor in group.descriptors]

    def _group_for(self, position: int) -> FeedGroup:
        """The group of a training at a position: one that is near, else one without trainings, else a new one.

        Raises:
            FarAwayError: there are as many groups as there may be, and all are elsewhere.
        """
        if near := self._used_group_near(position):
            return near
        if empty := [group for group in self._groups if group.empty_since is not None]:
            return min(empty, key=lambda group: group.distance(position))
        if len(self._groups) < self._limits.groups:
            try:
                return self._open_group()
            except OSError as error:
                raise FarAwayError(f"position: there is no room for another group ({error})") from error
        raise FarAwayError(
            f"position: expected one where the others are, in {len(self._groups)} groups, got {position}"
        )

    def _used_group_near(self, position: int) -> FeedGroup | None:
        used = (group for group in self._groups if group.empty_since is None)
        return next((group for group in used if group.is_near(position)), None)

    def _join_groups(self) -> None:
        """Have the trainings of a group go on with those of an earlier one that have come near."""
        used = [group for group in self._groups if group.empty_since is None]
        for place, group in enumerate(used):
            if any(other.trainings and other.is_near_all_of(group) for other in used[:place]):
                for number in group.trainings:
                    self._refuse(self._connections[number], MovedError("others have come near: it goes on with these"))

    def _close_empty_groups(self, now: float) -> None:
        """Close groups that have had no training for some time. One stays, as long as the feed does."""
        for group in list(self._groups):
            since = group.empty_since
            if since is not None and now - since >= self._limits.linger_seconds and len(self._groups) > 1:
                self._groups.remove(group)
                group.close()


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
            log(str(error))
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
        connection.send(pack(Refused(str(error), error.final, isinstance(error, MovedError))))
    with contextlib.suppress(OSError):
        while connection.recv(MAX_PACKET_BYTES + 1):
            pass
    connection.close()
