"""Messages wait for a peer, and no longer than is good."""

from __future__ import annotations

import asyncio

from malletrain.agent.peer_queue import PeerQueue


async def test_messages_come_in_order_and_the_end_after_them() -> None:
    queue: PeerQueue[int] = PeerQueue()
    waiting = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    for number in range(3):
        queue.put(number)
    queue.close()
    queue.put(3)
    assert await waiting == 0
    assert [await queue.next() for _ in range(3)] == [1, 2, None]
    assert not queue.overflowed


async def test_a_peer_that_takes_nothing_is_given_up() -> None:
    queue: PeerQueue[int] = PeerQueue(max_waiting=2)
    for number in range(3):
        queue.put(number)
    assert queue.overflowed
    assert await queue.next() is None
