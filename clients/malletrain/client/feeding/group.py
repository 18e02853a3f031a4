"""Trainings that are near each other, and what prepares and keeps their samples: a feed has some such groups."""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from malletrain.client.feeding.codec import decode, encode
from malletrain.client.feeding.errors import FeedError, UnsuitableSampleError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.ownership import BLOCK
from malletrain.client.feeding.peering import GroupPeers, KnownPeers
from malletrain.client.feeding.ring_memory import HEAD_BYTES, FeedRingWriter
from malletrain.client.feeding.schedule import Delivery, FarAwayError, FeedSchedule, Task
from malletrain.client.feeding.seeding import Preparation
from malletrain.client.warn_once import describe
from malletrain.common.worker_bootstrap import die_with_parent

_TASK = struct.Struct("=qq")
_HEAD = struct.Struct("=qqq")
TASKS_AHEAD = 2
"""Samples that a process has been asked for: one that it prepares, and the next."""


class TaskOutcome(IntEnum):
    """What has become of a task."""

    PREPARED = 0
    RAISED = 1
    UNSUITABLE = 2


class PreparedSample(NamedTuple):
    """The end of a task.

    Attributes:
        task: The task.
        outcome: What has become of it.
        content: The sample as bytes, or the reason as text.
        cpu_seconds: CPU time that it took.
    """

    task: Task
    outcome: TaskOutcome
    content: bytes
    cpu_seconds: float = 0.0

    @property
    def reason(self) -> str:
        """Why there is no sample."""
        return self.content.decode(errors="replace")


class PreparingProcess:
    """One such process, as the feed sees it.

    Attributes:
        pid: Its process id.
        connection: The feed's end of the connection to it.
        tasks: What it has been asked for, and has not answered.
    """

    def __init__(self, preparation: Preparation, inherited: Iterable[int]) -> None:
        """Fork it.

        Args:
            inherited: Descriptors of the feed that it must not keep open.

        Raises:
            OSError: it can't be forked.
        """
        self.connection, other = socket.socketpair()
        self.tasks: deque[Task] = deque()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run(lambda: _be_child(parent, other, preparation, [*inherited, self.connection.fileno()]))
        other.close()
        self.connection.setblocking(False)
        self._buffer = bytearray(_HEAD.size)
        self._outcome: TaskOutcome | None = None
        self._cpu_seconds = 0.0
        self._filled = 0

    @property
    def is_free(self) -> bool:
        """Whether it can be asked for another sample."""
        return len(self.tasks) < TASKS_AHEAD

    def give(self, task: Task) -> None:
        """Ask for a sample.

        Raises:
            OSError: it has ended.
        """
        self.connection.send(_TASK.pack(*task))
        self.tasks.append(task)

    def receive(self) -> list[PreparedSample]:
        """What it has answered.

        Raises:
            EOFError: it has ended, and all that it had answered has been returned before.
        """
        done: list[PreparedSample] = []
        while True:
            if self._filled < len(self._buffer):
                try:
                    got = self.connection.recv_into(memoryview(self._buffer)[self._filled :])
                except BlockingIOError:
                    return done
                except ConnectionError:
                    got = 0
                if not got:
                    if done:
                        return done  # the next call finds the end again
                    raise EOFError
                self._filled += got
            if self._filled < len(self._buffer):
                continue
            content, self._filled = bytes(self._buffer), 0
            if self._outcome is None:
                kind, length, cpu_ns = _HEAD.unpack(content)
                self._outcome, self._buffer, self._cpu_seconds = TaskOutcome(kind), bytearray(length), cpu_ns / 1e9
            else:
                done.append(PreparedSample(self.tasks.popleft(), self._outcome, content, self._cpu_seconds))
                self._outcome, self._buffer = None, bytearray(_HEAD.size)

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self.connection.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _run(child: Callable[[], None]) -> None:
    """Run a forked process to its end: it never returns to the code of the feed."""
    try:
        child()
    except BaseException as error:  # noqa: BLE001 - a dataset may raise anything
        print(f"malletrain: a process that prepares samples ends: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _be_child(parent: int, connection: socket.socket, preparation: Preparation, inherited: Iterable[int]) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in inherited:
        os.close(descriptor)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # as in a DataLoader's processes: there are as many as shall compute
    while packet := connection.recv(_TASK.size, socket.MSG_WAITALL):
        began = time.process_time_ns()
        outcome, content = _answer(preparation, Task(*_TASK.unpack(packet)))
        connection.sendall(_HEAD.pack(outcome, len(content), time.process_time_ns() - began))
        connection.sendall(content)


def _answer(preparation: Preparation, task: Task) -> tuple[TaskOutcome, bytes]:
    try:
        return TaskOutcome.PREPARED, encode(preparation.prepare(*task))
    except UnsuitableSampleError as error:
        return TaskOutcome.UNSUITABLE, str(error).encode()
    except Exception as error:  # noqa: BLE001 - a dataset may raise anything
        return TaskOutcome.RAISED, describe(error).encode()


_MAX_LOSSES = 5
"""How many of the processes may end by themselves before the feed gives up."""


class FeedGroup:
    """One schedule, with its shared memory and its processes.

    Attributes:
        costs: What samples have cost.
        shares: Whether it may share with feeds of other nodes.
        empty_since: Since when no training is in it, in monotonic seconds; None: one is.
    """

    def __init__(
        self,
        preparation: Preparation,
        limits: FeedLimits,
        workers: int,
        selector: selectors.BaseSelector,
        inherited: Callable[[], Sequence[int]],
        now: float,
        peers: KnownPeers | None = None,
    ) -> None:
        """Start the processes.

        Args:
            workers: How many processes prepare samples, at least 1.
            inherited: Tells the descriptors of the feed that processes must not keep open.
            now: Monotonic time in seconds.
            peers: Feeds of other nodes, with which it shares; None: with nobody.

        Raises:
            OSError: there is no memory, or a process can't be forked.
        """
        self._preparation, self._limits, self._selector, self._inherited = preparation, limits, selector, inherited
        self.costs = PreparingCosts()
        self.shares = True
        self.empty_since: float | None = now
        self._schedule = FeedSchedule(limits)
        self._ring = FeedRingWriter(limits.memory_bytes)
        self._members: set[int] = set()
        self._peer_members: set[int] = set()
        self._peers = GroupPeers(peers, selector, self._take_from_peer)
        self._local: list[Task] = []
        self._was_idle = True
        self._held: list[PreparedSample] = []
        self._losses = 0
        self._processes: list[PreparingProcess] = []
        self._position = 0
        self._failure: FeedError | None = None
        try:
            for _ in range(workers):
                self._start_process()
        except BaseException:
            self.close()
            raise

    @property
    def descriptor(self) -> int:
        """Descriptor of the shared memory, to be sent to trainings."""
        return self._ring.descriptor

    @property
    def descriptors(self) -> list[int]:
        """All that processes forked from the feed must not keep open."""
        processes = (process.connection.fileno() for process in self._processes)
        return [self._ring.descriptor, *processes, *(each for each in self._peers.descriptors if each >= 0)]

    @property
    def processes(self) -> int:
        """How many processes prepare samples."""
        return len(self._processes)

    def close(self) -> None:
        """End the processes, and give up the memory: trainings that have it mapped keep it until they leave."""
        self._peers.close()
        for process in self._processes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.connection)
            process.end()
        self._processes.clear()
        self._ring.close()

    # -- trainings ---------------------------------------------------------------------------------------------------

    def is_near(self, position: int) -> bool:
        """Whether a training at a position can share with those that are here."""
        try:
            self._schedule.check_near(position)
        except FarAwayError:
            return False
        return True

    def is_near_all_of(self, other: FeedGroup) -> bool:
        """Whether all trainings of another group can share with those that are here."""
        positions = other._schedule.positions(other._members)
        return bool(positions) and self.is_near(min(positions)) and self.is_near(max(positions))

    @property
    def trainings(self) -> list[int]:
        """The trainings that are in it."""
        return sorted(self._members)

    def distance(self, position: int) -> int:
        """How far a position is from where a training of this group was last."""
        return abs(position - self._position)

    def join(self, training: int, position: int) -> None:
        """A training has been greeted. From now on nobody goes further than it can follow.

        Raises:
            FarAwayError: the others are elsewhere.
        """
        self.request(training, position, (), waiting=False)
        self._members.add(training)
        self.empty_since = None

    def request(self, training: int, position: int, tasks: Iterable[Task], *, waiting: bool) -> None:
        """See `FeedSchedule.request`."""
        try:
            self._schedule.request(training, position, tasks, waiting=waiting)
        except FeedError as error:
            if not (error.final and self._peer_members):
                raise
            # It may be those of other nodes that have another order: better without them than without a training.
            self.shares = False
            self._peers.close()
            raise FeedError(str(error)) from error
        self._position = position

    def join_peer(self, consumer: int, position: int) -> None:
        """The feed of another node has been greeted. It does not keep the group: that is for its own trainings.

        Raises:
            FarAwayError: the trainings here are elsewhere.
            FeedError: this group shares with no other node.
        """
        if not self.shares:
            raise FeedError("order: expected that of the trainings here, and that of other nodes was another")
        self._schedule.request(consumer, position, (), waiting=False)
        self._peer_members.add(consumer)

    def request_for_peer(self, consumer: int, position: int, tasks: Sequence[Task], *, waiting: bool) -> None:
        """As `request`, for the feed of another node. What it asks for is prepared here, whoever owns it."""
        self._schedule.request(consumer, position, tasks, waiting=waiting)
        for task in tasks:
            self._peers.take_back(task.number)

    def read(self, delivery: Delivery) -> bytes | None:
        """The content of a sample that has been delivered; None if it has given way."""
        if delivery.place is None:
            return None
        length = delivery.place.length - HEAD_BYTES
        return self._ring.read(delivery.place.offset, delivery.number, delivery.dataset_index, length)

    def drop_peer(self, name: str, now: float) -> None:
        """The feed of another node has kept trainings waiting: ask it for nothing for some time."""
        self._peers.drop(name, now)

    def leave(self, training: int, now: float) -> None:
        """A training, or the feed of another node, has gone or is dropped."""
        self._schedule.remove(training)
        self._peer_members.discard(training)
        if training in self._members:
            self._members.discard(training)
            if not self._members:
                self.empty_since, self.shares = now, True
                self._peers.close()

    def overdue(self, now: float) -> list[int]:
        """See `FeedSchedule.overdue`."""
        return self._schedule.overdue(now)

    # -- samples -----------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> list[Delivery]:
        """Do what has become possible. What has become available for trainings.

        Args:
            now: Monotonic time in seconds.

        Raises:
            FeedError: samples of this dataset can't be shared, or can't be prepared.
        """
        if self._failure is not None:
            raise self._failure
        held, self._held = sorted(self._held, key=lambda prepared: prepared.task), []
        for prepared in held:
            self._put(prepared)
        position = min(self._schedule.positions(self._members), default=None)
        if position is not None and self.shares:
            self._peers.look(position, now, self._schedule.is_waited_for, idle=self._was_idle)
        self._give()
        while self._wants_tasks() and (task := self._schedule.next_task()) is not None:
            if self._schedule.is_wanted(task.number, self._peer_members) or not self._peers.ask(task):
                heapq.heappush(self._local, task)
                self._give()
        if position is not None and self.shares:
            self._peers.tell(position, now, self._schedule.is_waited_for)
        self._was_idle = not self._local and not any(process.tasks for process in self._processes)
        self._erase()
        return self._schedule.take_deliveries()

    def _wants_tasks(self) -> bool:
        """Whether another sample can be given to a process, or to the feed of another node."""
        if self._local:
            return self._peers.are_open and len(self._local) < BLOCK
        return self._peers.are_open or any(process.is_free for process in self._processes)

    def _give(self) -> None:
        """Give processes what is to be prepared here."""
        free = [process for process in self._processes if process.is_free]
        while free and self._local:
            task = heapq.heappop(self._local)
            if not self._schedule.is_wanted(task.number):
                self._schedule.fail(task.number, "nobody waits for it any more")
                continue
            process = min(free, key=lambda each: len(each.tasks))
            try:
                process.give(task)
            except OSError:
                self._schedule.fail(task.number, "the process that prepares it has ended")
                break  # the selector finds out, too
            free = [each for each in free if each.is_free]

    def _take_from_peer(self, task: Task, content: bytes | None) -> None:
        """What the feed of another node has answered."""
        if content is None:
            heapq.heappush(self._local, task)
            return
        try:
            decode(content)  # a training that finds out leaves the feed
        except FeedError:
            heapq.heappush(self._local, task)
            raise
        self._put(PreparedSample(task, TaskOutcome.PREPARED, content))

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
        process = PreparingProcess(self._preparation, {*self._inherited(), *self.descriptors})
        self._processes.append(process)
        self._selector.register(process.connection, selectors.EVENT_READ, lambda _: self._collect(process))

    def _collect(self, process: PreparingProcess) -> None:
        if process not in self._processes:
            return  # the group has been closed in this round of the selector
        try:
            for prepared in process.receive():
                self._take(prepared)
        except EOFError:
            self._replace(process)

    def _take(self, prepared: PreparedSample) -> None:
        self.costs.add(prepared.cpu_seconds)
        match prepared.outcome:
            case TaskOutcome.PREPARED:
                self._put(prepared)
            case TaskOutcome.RAISED:
                log(f"sample {prepared.task.number} (dataset index {prepared.task.dataset_index}): {prepared.reason}")
                self._schedule.fail(prepared.task.number, prepared.reason)
            case TaskOutcome.UNSUITABLE:
                self._failure = FeedError(prepared.reason, final=True)

    def _replace(self, process: PreparingProcess) -> None:
        self._selector.unregister(process.connection)
        self._processes.remove(process)
        process.end()
        for task in process.tasks:
            self._schedule.fail(task.number, "the process that prepared it has ended")
        self._losses += 1
        log(f"process {process.pid}, which prepares samples, has ended")
        if self._losses > _MAX_LOSSES:
            self._failure = FeedError("processes that prepare samples end by themselves", final=True)
            return
        self._start_process()


def log(message: str) -> None:
    """Write a line to the feed's log."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} feed: {message}", file=sys.stderr, flush=True)


_REMEMBERED = 512.0
"""Samples on which a figure rests about: older ones count less and less."""
MIN_SAMPLES = 8
"""A figure is told once it rests on so many samples."""


@dataclass
class PreparingCosts:
    """CPU time of samples."""

    samples: int = 0
    _weight: float = 0.0
    _seconds: float = 0.0

    def add(self, cpu_seconds: float) -> None:
        """A sample has been prepared in so much CPU time, in seconds."""
        self.samples += 1
        kept = 1.0 - 1.0 / _REMEMBERED
        self._weight = self._weight * kept + 1.0
        self._seconds = self._seconds * kept + max(0.0, cpu_seconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of a sample; 0: not known yet."""
        return self._seconds / self._weight if self.samples >= MIN_SAMPLES else 0.0
