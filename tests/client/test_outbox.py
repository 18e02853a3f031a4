"""What the sidecar keeps, sends and drops."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from malletrain.client.monitor_stream import Outbox
from malletrain.client.ring import RingRecord

CAPACITY = 20


def records(first: int, count: int) -> list[RingRecord]:
    return [RingRecord(sequence, sequence, 1, -1, 1) for sequence in range(first, first + count)]


class OutboxMachine(RuleBasedStateMachine):
    """Against a plain model: a Monitor that stores what it is sent, and a stream that breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(capacity=CAPACITY)
        self.newest = 0
        self.stored: set[int] = set()
        self.sent: list[int] = []

    @rule(count=st.integers(0, 30), lost=st.integers(0, 3))
    def add(self, count: int, lost: int) -> None:
        self.outbox.add(records(self.newest + lost + 1, count), lost if count else 0)
        self.newest += count + (lost if count else 0)

    @rule(limit=st.integers(1, 10), arrives=st.booleans())
    def send(self, limit: int, arrives: bool) -> None:
        taken = [record.sequence for record in self.outbox.take(limit)]
        assert taken == list(range(taken[0], taken[0] + len(taken))) if taken else True
        self.sent += taken
        if arrives:
            self.stored.update(taken)
        elif taken:
            self.outbox.rewind()

    @rule()
    def acknowledge(self) -> None:
        self.outbox.acknowledge(max(self.stored, default=0))

    @rule()
    def break_stream(self) -> None:
        self.outbox.rewind()
        assert self.outbox.in_flight == 0

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert len(self.outbox) <= CAPACITY
        # Every record is stored, kept or counted; one that was stored but never acknowledged may be counted, too.
        assert self.newest <= len(self.stored) + len(self.outbox) + self.outbox.dropped
        assert self.outbox.dropped <= self.newest
        assert self.outbox.floor <= self.newest


TestOutbox = OutboxMachine.TestCase


def test_the_oldest_go_first_and_are_counted() -> None:
    outbox = Outbox(capacity=5)
    outbox.add(records(1, 4), 0)
    assert [record.sequence for record in outbox.take(2)] == [1, 2]
    outbox.add(records(5, 4), 0)
    assert (outbox.dropped, outbox.floor, len(outbox)) == (3, 3, 5)
    assert [record.sequence for record in outbox.take(9)] == [4, 5, 6, 7, 8]


def test_a_lost_stream_is_sent_again_in_order() -> None:
    outbox = Outbox()
    outbox.add(records(1, 6), 0)
    outbox.take(4)
    outbox.acknowledge(2)
    outbox.rewind()
    assert [record.sequence for record in outbox.take(9)] == [3, 4, 5, 6]


def test_a_batch_ends_at_a_gap() -> None:
    outbox = Outbox()
    outbox.add(records(1, 2), 0)
    outbox.add(records(6, 2), 3)
    assert [record.sequence for record in outbox.take(9)] == [1, 2]
    assert [record.sequence for record in outbox.take(9)] == [6, 7]
    assert outbox.dropped == 3


def test_refused_records_are_dropped_and_the_next_are_kept() -> None:
    outbox = Outbox(floor=10, dropped=1)
    outbox.add(records(11, 3), 0)
    outbox.take(2)
    outbox.refuse()
    assert (outbox.dropped, outbox.floor, len(outbox)) == (3, 12, 1)


def test_the_next_message_waits_for_the_answer_to_the_one_before_but_not_for_ever() -> None:
    outbox = Outbox()
    outbox.add(records(1, 2), 0)
    assert not outbox.is_due(0.05)
    assert outbox.is_due(0.1)
    outbox.take(1)
    assert not outbox.is_due(0.9)
    assert outbox.is_due(1.0)
    outbox.acknowledge(1)
    assert outbox.is_due(0.1)
