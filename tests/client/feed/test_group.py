"""A group of trainings, and feeds of other nodes that ask it."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator

import pytest

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.group import FeedGroup
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.schedule import Delivery, Task
from malletrain.client.feeding.seeding import Preparation
from tests.support.waiting import wait_until

SIZE = 100
HERE, PEER = 1, 2


@pytest.fixture
def group() -> Iterator[FeedGroup]:
    with selectors.DefaultSelector() as selector:
        found = FeedGroup(Preparation(range(SIZE), 0, SIZE), FeedLimits(), 1, selector, lambda: (), 1.0)
        found.selector = selector  # type: ignore[attr-defined]
        yield found
        found.close()


def turns(group: FeedGroup, count: int) -> list[Delivery]:
    """Wait until so many samples are there."""
    selector: selectors.BaseSelector = group.selector  # type: ignore[attr-defined]
    found: list[Delivery] = []

    def enough() -> bool:
        for key, events in selector.select(0.05):
            key.data(events)
        found.extend(group.turn(time.monotonic()))
        return len(found) >= count

    wait_until(enough, 30, f"{count} samples")
    return found


def tasks(*numbers: int, shift: int = 0) -> list[Task]:
    return [Task(number, number + shift) for number in numbers]


def test_a_feed_of_another_node_gets_what_was_prepared_for_a_training(group: FeedGroup) -> None:
    group.join(HERE, 0)
    group.request(HERE, 0, tasks(0, 1, 2), waiting=True)
    group.join_peer(PEER, 0)
    group.request_for_peer(PEER, 0, tasks(1, 2, 3), waiting=True)
    found = turns(group, 6)
    assert sorted((each.consumer, each.number) for each in found) == [(1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    assert group.costs.samples == 4
    contents = {each.number: group.read(each) for each in found if each.consumer == PEER}
    assert all(contents.values())
    assert len(set(contents.values())) == 3
    place = next(each for each in found if each.consumer == PEER)
    assert group.read(place._replace(number=99)) is None, "another sample than that which lies there"
    assert group.read(place._replace(place=None)) is None


def test_a_feed_of_another_node_does_not_keep_a_group(group: FeedGroup) -> None:
    group.join(HERE, 0)
    group.join_peer(PEER, 0)
    assert not group.empty_since
    group.leave(HERE, 5.0)
    assert group.empty_since == 5.0
    group.leave(PEER, 6.0)
    assert group.empty_since == 5.0


def test_another_order_on_another_node_costs_no_training_its_feed(group: FeedGroup) -> None:
    group.join(HERE, 0)
    group.join_peer(PEER, 0)
    group.request_for_peer(PEER, 0, tasks(5, shift=1), waiting=True)
    with pytest.raises(FeedError, match="expected index 6") as raised:
        group.request(HERE, 0, tasks(5), waiting=True)
    assert not raised.value.final, "it asks again"
    assert [group.shares] == [False]
    with pytest.raises(FeedError, match="order: expected"):
        group.join_peer(3, 0)
    for consumer in (HERE, PEER):
        group.leave(consumer, 1.0)
    assert [group.shares] == [True], "whoever comes next may have the order of other nodes"
    group.join(HERE, 0)
    group.request(HERE, 0, tasks(7), waiting=True)
    assert [each.number for each in turns(group, 1)] == [7]


def test_another_order_of_a_training_here_is_final(group: FeedGroup) -> None:
    for training in (HERE, PEER):
        group.join(training, 0)
    group.request(HERE, 0, tasks(5), waiting=True)
    with pytest.raises(FeedError, match="expected index 5") as raised:
        group.request(PEER, 0, tasks(5, shift=1), waiting=True)
    assert raised.value.final
