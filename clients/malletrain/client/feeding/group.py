"""Trainings that are near each other, and what prepares and keeps their samples: a feed has some such groups. Pure."""

from __future__ import annotations

import contextlib
import heapq
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from malletrain.client.feeding.codec import decode
from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.pace import PaceMeter, SupplyMeter
from malletrain.client.feeding.peer_share import BLOCK
from malletrain.client.feeding.peering import GroupPeers, KnownPeers
from malletrain.client.feeding.preparing import PreparedSample, PreparingCosts, PreparingProcess, TaskOutcome
from malletrain.client.feeding.ring_memory import HEAD_BYTES, FeedRingWriter
from malletrain.client.feeding.schedule import Delivery, FarAwayError, FeedSchedule, Task
from malletrain.client.feeding.seeding import Preparation

_MAX_LOSSES = 5
"""How many of the processes may end by themselves before the feed gives up."""


class FeedGroup:
    """One schedule, with its shared memory and its processes.

    Attributes:
        costs: What samples have cost.
        pace: How fast its trainings would go.
        supply: What its processes prepare.
        done: Samples that they have prepared.
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
        rates: Mapping[int, float] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            workers: How many processes prepare samples, at least 1; see `resize`.
            inherited: Tells the descriptors of the feed that processes must not keep open.
            now: Monotonic time in seconds.
            peers: Feeds of other nodes, with which it shares; None: with nobody.
            rates: Samples/s by number of processes that earlier ones have prepared.

        Raises:
            OSError: there is no memory, or a process can't be forked.
        """
        self._preparation, self._limits, self._selector, self._inherited = preparation, limits, selector, inherited
        self.costs = PreparingCosts()
        self.pace, self.supply, self.done = PaceMeter(), SupplyMeter(rates), 0
        self._counted = 0
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
        """How many processes prepare samples, without those that end once they have answered."""
        return sum(not process.retiring for process in self._processes)

    def resize(self, number: int) -> None:
        """Have another number of processes prepare samples. None is lost, and their order is that of their numbers.

        Those that are too many end once they have answered what they were asked for.

        Args:
            number: At least 1.

        Raises:
            OSError: a process can't be forked; those that could be are there.
        """
        working = [process for process in self._processes if not process.retiring]
        for process in sorted(working, key=lambda each: len(each.tasks))[: max(0, len(working) - number)]:
            process.retiring = True
        for process in self._processes:
            if process.retiring and self.processes < number:
                process.retiring = False
        while self.processes < number:
            self._start_process()
        self._end_retired()

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
        self._measure(now)
        self._erase()
        return self._schedule.take_deliveries()

    def _measure(self, now: float) -> None:
        """Note who waits, and what processes do."""
        self.pace.look(now, self.done, self._members, self._schedule.waiting(self._members))
        busy = sum(bool(process.tasks) for process in self._processes if not process.retiring)
        self.supply.look(now, self.processes, busy, self._counted)
        self._counted = 0

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
                self._counted += not process.retiring
                self._take(prepared)
        except EOFError:
            self._replace(process)
        self._end_retired()

    def _end_retired(self) -> None:
        for process in [each for each in self._processes if each.retiring and not each.tasks]:
            self._selector.unregister(process.connection)
            self._processes.remove(process)
            process.end()

    def _take(self, prepared: PreparedSample) -> None:
        self.costs.add(prepared.cpu_seconds)
        self.done += 1
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
        if process.retiring:
            return
        self._losses += 1
        log(f"process {process.pid}, which prepares samples, has ended")
        if self._losses > _MAX_LOSSES:
            self._failure = FeedError("processes that prepare samples end by themselves", final=True)
            return
        self._start_process()


def log(message: str) -> None:
    """Write a line to the feed's log."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} feed: {message}", file=sys.stderr, flush=True)
