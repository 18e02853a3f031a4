"""What a feed prepares, keeps and drops. Pure: no I/O and no clock.

Trainings (*consumers*) ask for samples by their number in the training. Each sample is prepared once, at the first
request, in the order of the numbers. It stays until it has to give way and no consumer may still ask for it: a consumer
asks for nothing below its position. What has been prepared is bounded, so the fastest consumer waits for the slowest.
One that keeps others waiting for too long is dropped.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.limits import FeedLimits

MAX_WANTED = 1 << 16
"""Most samples that one consumer may wait for."""


class FarAwayError(FeedError):
    """A consumer asks for a position that is far from that of the others."""


class Stage(Enum):
    """How far a sample is."""

    WANTED = auto()
    PREPARING = auto()
    PLACED = auto()
    UNABLE = auto()


@dataclass(slots=True)
class _Sample:
    index: int
    stage: Stage = Stage.WANTED
    place: Place | None = None
    reason: str = ""


@dataclass(slots=True)
class _Consumer:
    position: int
    wanted: set[int] = field(default_factory=set)
    waiting: bool = False
    debt: float = 0.0


class Delivery(NamedTuple):
    """A sample for a consumer.

    Attributes:
        consumer: Who has asked for it.
        number: The sample's number in the training.
        dataset_index: Its dataset index.
        place: Where it lies; None: the consumer has to prepare it itself.
        reason: Why it has to.
    """

    consumer: int
    number: int
    dataset_index: int
    place: Place | None
    reason: str = ""


class Task(NamedTuple):
    """A sample to prepare: number in the training, dataset index."""

    number: int
    dataset_index: int


class FeedSchedule:
    """The state of a feed."""

    def __init__(self, limits: FeedLimits) -> None:
        self._limits = limits
        self._space = RingSpace(limits.memory_bytes, limits.samples)
        self._consumers: dict[int, _Consumer] = {}
        self._samples: dict[int, _Sample] = {}
        self._queue: list[int] = []
        self._preparing = 0
        self._held: set[int] = set()
        self._largest = 0
        self._deliveries: list[Delivery] = []
        self._is_full = False
        self._looked: float | None = None
        self._given_up: list[Place] = []

    # -- consumers ---------------------------------------------------------------------------------------------------

    def request(self, consumer: int, position: int, tasks: Iterable[Task], *, waiting: bool) -> None:
        """A consumer says where it is, and asks for samples.

        Args:
            consumer: Who asks. The first request makes it known.
            position: It will never ask for a sample with a smaller number.
            tasks: What it asks for in addition to what it has asked for before.
            waiting: Whether its training waits.

        Raises:
            FarAwayError: the others are elsewhere.
            FeedError: the request makes no sense. The consumer must be removed.
        """
        known = self._consumers.get(consumer)
        if known is None:
            self.check_near(position)
            known = self._consumers[consumer] = _Consumer(position)
        if position < known.position:
            raise FeedError(f"position: expected at least {known.position}, got {position}")
        known.position, known.waiting = position, waiting
        known.wanted = {number for number in known.wanted if number >= position}
        for task in tasks:
            self._want(consumer, known, task)

    def remove(self, consumer: int) -> None:
        """A consumer has gone, or is dropped."""
        self._consumers.pop(consumer, None)
        self._deliveries = [each for each in self._deliveries if each.consumer != consumer]

    def check_near(self, position: int) -> None:
        """Check that a new consumer is near the others: they would have to wait while it catches up.

        Raises:
            FarAwayError: the others are elsewhere.
        """
        positions = [each.position for each in self._consumers.values()]
        if not positions:
            return
        least, most = min(positions) - self._limits.samples, max(positions) + self._limits.samples
        if self._is_full and self._space.places:
            # What has given way would be prepared again, and the others would wait for that.
            least = max(least, min(place.owner for place in self._space.places))
        if not least <= position <= most:
            raise FarAwayError(f"position: expected {max(0, least)} to {most}, where the others are, got {position}")

    def _want(self, consumer: int, known: _Consumer, task: Task) -> None:
        number, index = task
        if number < known.position:
            raise FeedError(f"number: expected at least the position {known.position}, got {number}")
        if len(known.wanted) >= MAX_WANTED:
            raise FeedError(f"request: expected at most {MAX_WANTED} samples, got more")
        sample = self._samples.get(number)
        if sample is not None and sample.index != index:
            if self._is_needed(number, but=consumer) or sample.stage is Stage.PREPARING:
                raise FeedError(
                    f"sample {number}: expected index {sample.index}, as in the order of the others, got {index}",
                    final=True,
                )
            sample = None  # what a training of another order has left
        if sample is None:
            sample = self._samples[number] = _Sample(index)
            heapq.heappush(self._queue, number)
        elif sample.stage is Stage.PLACED:
            self._deliveries.append(Delivery(consumer, number, index, sample.place))
            return
        known.wanted.add(number)

    def positions(self, consumers: Iterable[int]) -> list[int]:
        """Where some consumers are: each asks for nothing below."""
        known = (self._consumers.get(consumer) for consumer in consumers)
        return [each.position for each in known if each is not None]

    def is_wanted(self, number: int, consumers: Iterable[int] | None = None) -> bool:
        """Whether any consumer, or one of some, waits for a sample or will."""
        among = self._consumers if consumers is None else consumers
        return any(number in self._consumers[each].wanted for each in among if each in self._consumers)

    def waiting(self, consumers: Iterable[int]) -> list[int]:
        """Those of some consumers whose trainings wait, and have asked for samples that are not there."""
        known = ((consumer, self._consumers.get(consumer)) for consumer in consumers)
        return [consumer for consumer, each in known if each is not None and each.waiting and each.wanted]

    def is_waited_for(self, numbers: Collection[int]) -> bool:
        """Whether a consumer waits, and has asked for one of some samples."""
        return any(each.waiting and not each.wanted.isdisjoint(numbers) for each in self._consumers.values())

    # -- samples -----------------------------------------------------------------------------------------------------

    def next_task(self) -> Task | None:
        """The next sample to prepare; None if there is nothing to do, or no room for another one."""
        while (number := self._first_wanted()) is not None:
            sample = self._samples[number]
            if self._has_room_for_another():
                heapq.heappop(self._queue)
                sample.stage = Stage.PREPARING
                self._preparing += 1
                return Task(number, sample.index)
            if self._preparing or not self._is_stuck(number):
                return None
            heapq.heappop(self._queue)
            self._fail(number, "the feed has no room for samples so far behind")
        return None

    def place(self, number: int, length: int) -> Place | None:
        """A sample is prepared: say where to put it.

        Args:
            number: Its number.
            length: Its bytes.

        Returns:
            The place; None without room. If `is_preparing` still holds, ask again later; else nobody waits for it now.
        """
        sample = self._samples[number]
        if not self._shed(length):
            if length > self._space.size or self._is_stuck(number) or not self._is_needed(number):
                self._end_of(number)
                self._fail(number, f"its {length} bytes have no room in the feed's memory of {self._space.size}")
            else:
                self._held.add(number)
            return None
        self._end_of(number)
        self._largest = max(self._largest, length + -length % ALIGNMENT)
        sample.stage, sample.place = Stage.PLACED, self._space.take(length, number)
        return sample.place

    def is_preparing(self, number: int) -> bool:
        """Whether a sample still waits for its place."""
        sample = self._samples.get(number)
        return sample is not None and sample.stage is Stage.PREPARING

    def announce(self, number: int) -> None:
        """A sample lies in its place: those who wait for it are told."""
        sample = self._samples[number]
        for consumer, known in self._consumers.items():
            if number in known.wanted:
                known.wanted.discard(number)
                self._deliveries.append(Delivery(consumer, number, sample.index, sample.place, sample.reason))

    def fail(self, number: int, reason: str) -> None:
        """A sample could not be prepared: those who want it prepare it themselves."""
        self._end_of(number)
        self._fail(number, reason)

    def take_deliveries(self) -> list[Delivery]:
        """What has become available for consumers since the last call."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_shed(self) -> list[Place]:
        """Places that have been given up since the last call. What lay there must be made unreadable."""
        places, self._given_up = self._given_up, []
        return places

    # -- time --------------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> list[int]:
        """Consumers that have kept others waiting for too long; the caller removes them.

        While a consumer waits because there is no room, whoever holds the oldest sample goes into debt, second by
        second. It gets out of debt as fast when nobody waits. So a training that stands still is dropped after
        `stall_seconds`, and soon one with less than half the pace of the others; all others advance together.

        Args:
            now: Monotonic time in seconds.
        """
        passed = 0.0 if self._looked is None else max(0.0, now - self._looked)
        self._looked = now
        holders = self._holders() if self._is_blocked() else frozenset()
        late = []
        for consumer, known in self._consumers.items():
            known.debt = known.debt + passed if consumer in holders else max(0.0, known.debt - passed)
            if known.debt >= self._limits.stall_seconds:
                late.append(consumer)
        return late

    def _is_blocked(self) -> bool:
        if not self._held and (self._preparing or self._first_wanted() is None or self._has_room_for_another()):
            return False
        return any(known.waiting and known.wanted for known in self._consumers.values())

    def _holders(self) -> frozenset[int]:
        oldest = self._space.oldest
        if oldest is None:
            return frozenset()
        return frozenset(
            consumer
            for consumer, known in self._consumers.items()
            if known.position <= oldest.owner and not (known.waiting and known.position in known.wanted)
        )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _first_wanted(self) -> int | None:
        """The smallest number that is to be prepared; what nobody wants any more is forgotten."""
        while self._queue:
            number = self._queue[0]
            sample = self._samples.get(number)
            if sample is not None and sample.stage is Stage.WANTED:
                if any(number in known.wanted for known in self._consumers.values()):
                    return number
                del self._samples[number]
            heapq.heappop(self._queue)
        return None

    def _has_room_for_another(self) -> bool:
        # As long as no sample is known, their size is not: the first one is prepared alone.
        if self._preparing and not self._largest:
            return False
        count = self._preparing + 1
        return self._shed(count * self._largest, count) or (count == 1 and self._space.oldest is None)

    def _shed(self, length: int, count: int = 1) -> bool:
        fits, shed = self._space.shed(length, self._is_needed, count)
        for place in shed:
            sample = self._samples.get(place.owner)
            if sample is not None and sample.place is place:
                del self._samples[place.owner]
        self._given_up += shed
        self._is_full = self._is_full or bool(shed)
        return fits

    def _is_needed(self, number: int, but: int | None = None) -> bool:
        """Whether any consumer, but one, may still ask for a sample, or has not copied it yet."""
        return any(known.position <= number for consumer, known in self._consumers.items() if consumer != but)

    def _is_stuck(self, number: int) -> bool:
        """Whether no sample that is needed before this one can make room for it."""
        return not any(place.owner < number and self._is_needed(place.owner) for place in self._space.places)

    def _end_of(self, number: int) -> None:
        if self.is_preparing(number):
            self._preparing -= 1
            self._held.discard(number)

    def _fail(self, number: int, reason: str) -> None:
        sample = self._samples[number]
        sample.stage, sample.reason = Stage.UNABLE, reason
        self.announce(number)
        # The next one who asks may have more luck.
        del self._samples[number]


ALIGNMENT = 64
"""Places begin at multiples of this many bytes: a cache line."""


class Place(NamedTuple):
    """A part of the ring.

    Attributes:
        offset: Its first byte.
        length: Its bytes.
        owner: What lies there.
    """

    offset: int
    length: int
    owner: int


class RingSpace:
    """The places of a ring, in the order in which they were taken."""

    def __init__(self, size: int, max_places: int) -> None:
        """Begin empty.

        Args:
            size: Bytes of the ring.
            max_places: Most places at a time.
        """
        self.size = size
        self.max_places = max_places
        self._places: deque[Place] = deque()
        self._head = 0

    @property
    def places(self) -> tuple[Place, ...]:
        """All places, the oldest first."""
        return tuple(self._places)

    @property
    def oldest(self) -> Place | None:
        """The place that has to give way first; None in an empty ring."""
        return self._places[0] if self._places else None

    def shed(self, length: int, is_needed: Callable[[int], bool], count: int = 1) -> tuple[bool, list[Place]]:
        """Give up the oldest places until there is room, or until one of them is needed.

        Args:
            length: Bytes for which there has to be room, one behind the other.
            is_needed: Whether what lies in a place has to stay.
            count: Number of places that these bytes are for.

        Returns:
            Whether there is room now, and the places that were given up.
        """
        shed: list[Place] = []
        while not self._has_room(length, count):
            if not self._places or is_needed(self._places[0].owner):
                return False, shed
            shed.append(self._places.popleft())
        return True, shed

    def take(self, length: int, owner: int) -> Place:
        """Take the next place; `shed` has made room for it.

        Raises:
            ValueError: there is no room.
        """
        offset = self._next(length)
        if offset is None or not self._has_room(length):
            raise ValueError(f"length: expected one for which there is room, got {length}")
        place = Place(offset, length, owner)
        self._places.append(place)
        self._head = offset + length + -length % ALIGNMENT
        return place

    def _has_room(self, length: int, count: int = 1) -> bool:
        return len(self._places) + count <= self.max_places and self._next(length) is not None

    def _next(self, length: int) -> int | None:
        """Where the next place would begin; None without room."""
        if not self._places:
            return 0 if length <= self.size else None
        tail = self._places[0].offset
        if self._head > tail:
            if self._head + length <= self.size:
                return self._head
            return 0 if length <= tail else None
        return self._head if self._head + length <= tail else None
