"""What waits for reporters, and what is remembered of them, does not grow with what they send."""

from __future__ import annotations

import asyncio
from itertools import count

from malletrain.monitor.machine.progress import (
    REPORTERS_KEPT,
    ProgressRecord,
    RecordColumns,
    ReportedBatch,
)
from malletrain.monitor.machine.trackers import JobTrackers
from malletrain.monitor.report_streams import MAX_COMMANDS, CommandRouter, ReportStream
from malletrain.monitor.settings import MonitorSettings
from malletrain.v1 import monitor_pb2

COMMIT = monitor_pb2.COMMAND_TYPE_COMMIT


def batch(reporter_id: str, sequence: int = 1) -> ReportedBatch:
    return ReportedBatch("j000001", reporter_id, sequence, RecordColumns.of([ProgressRecord(1e9, 8, -1, 1)]), 1)


async def test_a_reporter_that_takes_no_answer_has_one_waiting() -> None:
    stream = ReportStream()
    for sequence in range(10_000):
        stream.acknowledge(sequence)
    for number in range(1000):
        stream.command(monitor_pb2.Command(id=str(number), type=COMMIT))
    stream.end()
    first = await stream.next()
    assert first is not None
    assert first.acknowledged_sequence == 9999
    assert [command.id for command in first.commands] == [str(number) for number in range(1000 - MAX_COMMANDS, 1000)]
    assert await stream.next() is None


async def test_each_answer_comes_once_and_one_that_says_nothing_new_comes_too() -> None:
    """A reporter that has ended its side waits for it: all its records may have been counted before."""
    stream = ReportStream()
    waiting = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.acknowledge(0)
    assert await waiting == monitor_pb2.ReportResponse()
    stream.command(monitor_pb2.Command(id="x", type=COMMIT))
    response = await stream.next()
    assert response is not None
    assert [command.id for command in response.commands] == ["x"]
    stream.acknowledge(5)
    stream.end()
    response = await stream.next()
    assert response is not None
    assert (response.acknowledged_sequence, list(response.commands)) == (5, [])
    assert await stream.next() is None


async def test_few_commands_wait_for_a_job_that_nobody_reports_of() -> None:
    numbers = count()
    router = CommandRouter(60.0, lambda: str(next(numbers)))
    for _ in range(1000):
        assert router.send("j000001", COMMIT, 0.0) == 0
    router.send("j000002", COMMIT, 0.0)
    stream = ReportStream()
    stream.identify(batch("a"))
    router.join(stream, 1.0)
    response = await stream.next()
    assert response is not None
    assert [command.id for command in response.commands] == [str(number) for number in range(1000 - MAX_COMMANDS, 1000)]
    router.send("j000003", COMMIT, 100.0)
    late = ReportStream()
    late.job_id = "j000002"
    router.join(late, 100.0)
    late.end()
    assert await late.next() is None


def test_of_many_reporters_the_newest_are_remembered() -> None:
    trackers = JobTrackers(MonitorSettings().options(), (), 0.0)
    for number in range(5 * REPORTERS_KEPT):
        trackers.add(batch(f"r{number}"), 0.0)
    (stored,) = trackers.take_unstored()
    assert list(stored.reporters) == [f"r{number}" for number in range(4 * REPORTERS_KEPT, 5 * REPORTERS_KEPT)]
    assert trackers.sequence("j000001", "r0") == 0
