from __future__ import annotations

import asyncio
import weakref

import pytest

from malletrain.runtime.errors import SlowReaderError
from malletrain.runtime.hub import Hub, newest, newest_of_each


async def test_a_watcher_gets_what_is_published_after_it_subscribed() -> None:
    hub: Hub[int] = Hub()
    hub.publish(1)
    with hub.subscribe() as subscription:
        hub.publish(2)
        hub.publish(3)
        hub.close()
        assert [item async for item in subscription] == [2, 3]


async def test_a_closed_hub_ends_new_subscriptions_at_once() -> None:
    hub: Hub[int] = Hub()
    hub.close()
    with hub.subscribe() as subscription:
        assert [item async for item in subscription] == []


class Item:
    """What is published, of which it can be seen whether it is still kept."""


def publish(hub: Hub[Item]) -> weakref.ref[Item]:
    """Publish an item that nobody else keeps."""
    item = Item()
    hub.publish(item)
    return weakref.ref(item)


async def test_a_watcher_that_left_costs_nothing() -> None:
    hub: Hub[Item] = Hub()
    with hub.subscribe() as left:
        kept = publish(hub)
        assert kept() is not None, "it has not been read"
    assert publish(hub)() is None
    del left
    assert kept() is None


async def test_two_watchers_do_not_share_a_queue() -> None:
    hub: Hub[str] = Hub()

    async def first_two() -> list[str]:
        with hub.subscribe() as subscription:
            ready.set()
            return [item async for item in subscription][:2]

    ready = asyncio.Event()
    reader = asyncio.create_task(first_two())
    await ready.wait()
    with hub.subscribe() as mine:
        hub.publish("a")
        hub.publish("b")
        hub.close()
        assert [item async for item in mine] == ["a", "b"]
    assert await reader == ["a", "b"]


async def test_a_watcher_that_does_not_read_has_to_begin_again_and_holds_nothing() -> None:
    hub: Hub[Item] = Hub(max_waiting=3)
    with hub.subscribe() as slow, hub.subscribe() as quick:
        items, published = aiter(quick), []
        for number in range(6):
            published.append(publish(hub))
            assert await anext(items) is published[-1]()
            assert all(item() is not None for item in published) == (number < 3)
        assert [item() for item in published[:-1]] == [None] * 5, "the newest is in the hand of the quick one"
        with pytest.raises(SlowReaderError, match="begin again"):
            await anext(aiter(slow))


async def test_what_waits_for_a_slow_watcher_is_merged_and_then_cut_off() -> None:
    hub: Hub[dict[str, int]] = Hub(max_waiting=3, merge=lambda before, after: before | after)
    with hub.subscribe() as slow:
        for item in ({"a": 1}, {"b": 1}, {"a": 2}):
            hub.publish(item)
        items = aiter(slow)
        assert await anext(items) == {"a": 2, "b": 1}
        hub.publish({"a": 3})
        assert await anext(items) == {"a": 3}, "it has caught up"
        for number in range(4):
            hub.publish({"a": number})
        with pytest.raises(SlowReaderError):
            await anext(items)


async def test_items_that_can_not_be_merged_wait_one_after_the_other() -> None:
    hub: Hub[int] = Hub(max_waiting=3, merge=lambda before, after: before + after if before != 2 else None)
    with hub.subscribe() as slow:
        for item in (1, 1, 5):
            hub.publish(item)
        items = aiter(slow)
        assert [await anext(items), await anext(items)] == [2, 5]


def test_the_newest_entry_of_each_key_is_kept() -> None:
    merge = newest_of_each(lambda entry: str(entry)[:1])
    assert merge(["a1", "b1"], ["c1", "a2"]) == ["a2", "b1", "c1"]
    assert newest("a1", "a2") == "a2"


async def test_who_comes_first_gets_items_before_the_others() -> None:
    hub: Hub[int] = Hub()
    order: list[str] = []

    async def read(name: str, *, first: bool) -> None:
        with hub.subscribe(first=first) as subscription:
            async for _ in subscription:
                order.append(name)

    readers = [asyncio.create_task(read("later", first=False)), asyncio.create_task(read("first", first=True))]
    await asyncio.sleep(0)
    hub.publish(1)
    await asyncio.sleep(0)
    hub.close()
    await asyncio.gather(*readers)
    assert order == ["first", "later"]
