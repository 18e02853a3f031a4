"""Trainings that are near each other, and what prepares and keeps their samples: a feed has some such groups."""

from __future__ import annotations

import contextlib
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from malletrain.client.feeding.costs import PreparingCosts
from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.preparing import PreparedSample, PreparingProcess, TaskOutcome
from malletrain.client.feeding.ring_memory import HEAD_BYTES, FeedRingWriter
from malletrain.client.feeding.schedule import Delivery, FarAwayError, FeedSchedule, Task
from malletrain.client.feeding.seeding import Preparation

_MOST_LOSSES = 5
"""How many of the processes may end by themselves before the feed gives up."""


class FeedGroup:
    """One schedule, with its shared memory and its processes.

    Attributes:
        costs: What samples have cost.
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
    ) -> None:
        """Start the processes.

        Args:
            preparation: How samples are prepared.
            limits: Limits of the feed.
            workers: How many processes prepare samples, at least 1.
            selector: Where their answers are waited for.
            inherited: Tells the descriptors of the feed that processes must not keep open.
            now: Monotonic time in seconds.

        Raises:
            OSError: there is no memory, or a process can't be forked.
        """
        self._preparation, self._limits, self._selector, self._inherited = preparation, limits, selector, inherited
        self.costs = PreparingCosts()
        self.empty_since: float | None = now
        self._schedule = FeedSchedule(limits)
        self._ring = FeedRingWriter(limits.memory_bytes)
        self._members: set[int] = set()
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
        return [self._ring.descriptor, *(process.connection.fileno() for process in self._processes)]

    @property
    def processes(self) -> int:
        """How many processes prepare samples."""
        return len(self._processes)

    def close(self) -> None:
        """End the processes, and give up the memory: trainings that have it mapped keep it until they leave."""
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
        self._schedule.request(training, position, tasks, waiting=waiting)
        self._position = position

    def leave(self, training: int, now: float) -> None:
        """A training has gone, or is dropped."""
        self._members.discard(training)
        self._schedule.remove(training)
        if not self._members:
            self.empty_since = now

    def overdue(self, now: float) -> list[int]:
        """See `FeedSchedule.overdue`."""
        return self._schedule.overdue(now)

    # -- samples -----------------------------------------------------------------------------------------------------

    def turn(self) -> list[Delivery]:
        """Do what has become possible. What has become available for trainings.

        Raises:
            FeedError: samples of this dataset can't be shared, or can't be prepared.
        """
        if self._failure is not None:
            raise self._failure
        held, self._held = sorted(self._held, key=lambda prepared: prepared.task), []
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
        return self._schedule.take_deliveries()

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
        if self._losses > _MOST_LOSSES:
            self._failure = FeedError("processes that prepare samples end by themselves", final=True)
            return
        self._start_process()


def log(message: str) -> None:
    """Write a line to the feed's log."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} feed: {message}", file=sys.stderr, flush=True)
