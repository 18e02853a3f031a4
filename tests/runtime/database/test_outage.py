"""How long callers wait for a PostgreSQL server that refuses, hangs or is slow, and that they get it back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.errors import DatabaseUnavailableError
from tests.support.postgresql import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def engine(postgresql: PostgresServer, tmp_path: Path) -> Iterator[Engine]:
    found = open_engine(postgresql.address("monitor", tmp_path))
    assert answers(found)
    yield found
    found.dispose()


def answers(engine: Engine) -> bool:
    try:
        with engine.connect() as connection:
            return connection.scalar(text("SELECT 1")) == 1
    except DatabaseUnavailableError:
        return False


def test_a_connection_that_was_ended_is_replaced_unnoticed(postgresql: PostgresServer, engine: Engine) -> None:
    for _ in range(5):
        assert postgresql.end_connections() >= 1
        assert answers(engine)


def test_a_server_that_is_killed_is_found_again(postgresql: PostgresServer, engine: Engine) -> None:
    postgresql.kill()
    assert not answers(engine)
    postgresql.start()
    wait_until(lambda: answers(engine), 30)


async def test_an_event_loop_waits_once_for_a_server_that_hangs(postgresql: PostgresServer, engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    postgresql.hang()
    try:
        began = loop.time()
        assert [answers(engine) for _ in range(100)] == [False] * 100
        # With a wait for each they were 200 s.
        assert loop.time() - began < 30
    finally:
        postgresql.go_on()
    await asyncio.to_thread(wait_until, lambda: answers(engine), 30)


async def test_what_is_slow_is_given_up_on_an_event_loop_and_waited_for_in_a_thread(engine: Engine) -> None:
    def sleep_in_parts() -> int:
        with engine.connect() as connection:
            for _ in range(3):
                connection.execute(text("SELECT pg_sleep(0.9)"))
            return connection.scalar(text("SELECT 1")) or 0

    with pytest.raises(DatabaseUnavailableError):
        sleep_in_parts()
    await asyncio.to_thread(wait_until, lambda: answers(engine), 30)
    assert await asyncio.to_thread(sleep_in_parts) == 1
