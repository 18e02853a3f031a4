"""Questions about usage: those of one user keep no other one waiting."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from malletrain.job_manager.storage.usage_query import StoredUsage, UsageQuery
from malletrain.job_manager.storage.usage_store import UsageStore
from malletrain.job_manager.usage_answers import UsageAnswers
from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import LimitExceededError
from malletrain.v1 import job_manager_pb2 as pb
from tests.support.waiting import wait_until_async


class SlowStore:
    """Answers questions about ada's usage when it is told to, and others at once."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.reading = 0

    def read(self, query: UsageQuery) -> StoredUsage:
        self.reading += 1
        if query.owner == "ada":
            assert self.go_on.wait(30.0)
        return StoredUsage((), (), ())


async def test_a_user_who_asks_much_keeps_only_itself_waiting() -> None:
    store = SlowStore()
    answers = UsageAnswers(cast(UsageStore, store), (), "")

    async def ask(user: str) -> None:
        caller = Identity(user, Role.USER, "t1", 0.0, 1e9)
        async for _ in answers.answer(answers.query(pb.GetUsageRequest(), caller), caller, 0.0, {}):
            pass

    many = [asyncio.create_task(ask("ada")) for _ in range(20)]
    await wait_until_async(lambda: store.reading == 1 and any(task.done() for task in many))
    await ask("bob")
    assert store.reading == 2
    store.go_on.set()
    answered = await asyncio.gather(*many, return_exceptions=True)
    refused = [found for found in answered if found is not None]
    assert 0 < len(refused) < 20
    with pytest.raises(LimitExceededError, match="usage can't be told now"):
        raise refused[0]
