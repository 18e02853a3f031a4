"""A feed's decisions, with consumers that ask as trainings do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.schedule import FarAwayError, FeedSchedule, Task

LENGTH = 1000
LIMITS = FeedLimits(samples=16)


@dataclass
class Training:
    """One that asks for batches, looks ahead, and copies what it is given."""

    number: int
    batch: int
    ahead: int
    position: int = 0
    asked: int = 0
    missing: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)

    def ask(self, schedule: FeedSchedule) -> None:
        """Take the next batch if it is complete, and ask for what follows."""
        if not any(number < self.position + self.batch for number in self.missing) and self.asked > self.position:
            self.position += self.batch
        wanted = range(self.asked, self.position + self.ahead * self.batch)
        self.asked = max(self.asked, wanted.stop)
        self.missing += wanted
        at = min(self.missing, default=self.asked)
        waiting = at < self.position + self.batch
        schedule.request(self.number, at, [Task(number, number % 7) for number in wanted], waiting=waiting)


class Feed:
    """Prepares what is asked for, in an order that `pick` decides."""

    def __init__(self, trainings: list[Training], limits: FeedLimits = LIMITS) -> None:
        self.schedule = FeedSchedule(limits)
        self.trainings = {training.number: training for training in trainings}
        self.prepared: Counter[int] = Counter()
        self.open: list[int] = []

    def turn(self, pick: int, workers: int = 4) -> None:
        while len(self.open) < workers and (task := self.schedule.next_task()) is not None:
            self.open.append(task.number)
        if self.open:
            number = self.open.pop(pick % len(self.open))
            if self.schedule.place(number, LENGTH) is not None:
                self.prepared[number] += 1
                self.schedule.announce(number)
            elif self.schedule.is_preparing(number):
                self.open.append(number)
        self.deliver()

    def deliver(self) -> None:
        for each in self.schedule.take_deliveries():
            training = self.trainings[each.consumer]
            training.missing.remove(each.number)
            if each.place is None:
                training.own.append(each.number)
        self.schedule.take_shed()


@given(
    shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=4),
    choices=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=400),
)
def test_each_sample_is_prepared_once_however_trainings_go(
    shapes: list[tuple[int, int]], choices: list[tuple[int, int]]
) -> None:
    trainings = [Training(number, batch, ahead) for number, (batch, ahead) in enumerate(shapes)]
    feed = Feed(trainings)
    for training in trainings:
        training.ask(feed.schedule)
    for who, pick in [*choices, *((who, 0) for _ in range(60) for who in range(4))]:
        if who < len(trainings):
            trainings[who].ask(feed.schedule)
        feed.turn(pick)
    assert set(feed.prepared.values()) <= {1}
    assert not any(training.own for training in trainings)
    # Nobody is left behind: all have got far, and no further apart than what is kept and asked for.
    assert all(training.position > 0 for training in trainings)
    reached = [training.position for training in trainings]
    most = max(batch * (ahead + 1) for batch, ahead in shapes)
    assert max(reached) - min(reached) <= LIMITS.samples + 2 * most


def advance(feed: Feed, training: Training, turns: int) -> None:
    for _ in range(turns):
        training.ask(feed.schedule)
        feed.turn(0)


def test_one_that_stands_still_is_dropped_in_time_and_the_others_go_on() -> None:
    fast, still = Training(1, 4, 2), Training(2, 4, 2)
    feed = Feed([fast, still])
    still.ask(feed.schedule)
    advance(feed, fast, 60)
    blocked_at = fast.position
    assert blocked_at < 60
    advance(feed, fast, 10)
    assert fast.position == blocked_at
    # It has not copied what it has been given: it is not waiting for anything.
    seconds = [round(0.1 * step, 1) for step in range(30)]
    dropped = next(now for now in seconds if feed.schedule.overdue(now) == [still.number])
    assert dropped == pytest.approx(LIMITS.stall_seconds, abs=0.11)
    feed.schedule.remove(still.number)
    advance(feed, fast, 60)
    assert fast.position > blocked_at + 20


def test_one_that_nobody_waits_for_may_take_its_time() -> None:
    one, other = Training(1, 4, 2), Training(2, 4, 2)
    feed = Feed([one, other])
    for training in (one, other):
        advance(feed, training, 8)
    assert [feed.schedule.overdue(float(now)) for now in range(100)] == [[]] * 100


def test_one_that_comes_a_little_later_finds_what_has_been_prepared() -> None:
    first, second = Training(1, 4, 1), Training(2, 4, 1)
    feed = Feed([first, second])
    advance(feed, first, 16)
    assert first.position >= 8
    advance(feed, second, 40)
    assert second.position > 8
    assert set(feed.prepared.values()) == {1}


def test_one_behind_what_is_kept_is_refused_once_samples_have_given_way() -> None:
    # The ring holds fewer samples than `samples`: its bytes decide.
    limits = FeedLimits(samples=2048, memory_mib=1)
    feed = Feed([first := Training(1, 4, 2)], limits)
    advance(feed, first, 3000)
    oldest = min(place.owner for place in feed.schedule._space.places)
    assert oldest > 0
    assert first.position - oldest < limits.samples
    with pytest.raises(FarAwayError, match=f"position: expected {oldest} to"):
        feed.schedule.request(2, oldest - 1, [], waiting=False)
    feed.schedule.request(2, oldest, [], waiting=False)


def test_another_pass_is_refused_while_others_are_elsewhere() -> None:
    feed = Feed([first := Training(1, 4, 2)])
    advance(feed, first, 8)
    with pytest.raises(FarAwayError, match="where the others are"):
        feed.schedule.request(2, 1000, [], waiting=False)
    feed.schedule.remove(1)
    feed.schedule.request(2, 1000, [], waiting=False)


def test_another_order_of_samples_is_refused() -> None:
    schedule = FeedSchedule(LIMITS)
    schedule.request(1, 0, [Task(3, 30)], waiting=False)
    with pytest.raises(FeedError, match="sample 3: expected index 30") as raised:
        schedule.request(2, 0, [Task(3, 31)], waiting=False)
    assert raised.value.final


def test_a_position_does_not_go_back() -> None:
    schedule = FeedSchedule(LIMITS)
    schedule.request(1, 10, [], waiting=False)
    with pytest.raises(FeedError, match="position: expected at least 10, got 9"):
        schedule.request(1, 9, [], waiting=False)
    with pytest.raises(FeedError, match="number: expected at least the position 10, got 8"):
        schedule.request(1, 10, [Task(8, 8)], waiting=False)


def test_a_sample_that_fails_is_left_to_those_who_want_it_and_tried_again_for_others() -> None:
    schedule = FeedSchedule(LIMITS)
    schedule.request(1, 0, [Task(0, 5)], waiting=True)
    assert schedule.next_task() == Task(0, 5)
    schedule.fail(0, "it is broken")
    (delivery,) = schedule.take_deliveries()
    assert (delivery.place, delivery.reason) == (None, "it is broken")
    schedule.request(2, 0, [Task(0, 5)], waiting=True)
    assert schedule.next_task() == Task(0, 5)


def test_a_sample_larger_than_the_memory_is_left_to_those_who_want_it() -> None:
    schedule = FeedSchedule(FeedLimits(memory_mib=1))
    schedule.request(1, 0, [Task(0, 5), Task(1, 6)], waiting=True)
    schedule.next_task()
    assert schedule.place(0, (1 << 20) + 1) is None
    (delivery,) = schedule.take_deliveries()
    assert "have no room" in delivery.reason
    assert schedule.next_task() == Task(1, 6)


@pytest.mark.parametrize("name", ["samples", "memory_mib", "stall_seconds", "linger_seconds", "groups", "calm_seconds"])
def test_limits_are_above_nothing(name: str) -> None:
    for value in (0, -1, True, "7", float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"{name}: expected a finite number above 0"):
            FeedLimits(**{name: value})


def test_groups_are_counted() -> None:
    with pytest.raises(ValueError, match=r"groups: expected a whole number, got 1\.5"):
        FeedLimits(groups=1.5)  # type: ignore[arg-type]


def test_the_memory_is_at_least_one_byte() -> None:
    with pytest.raises(ValueError, match="memory_mib: expected at least one byte"):
        FeedLimits(memory_mib=1e-9)  # type: ignore[arg-type]
