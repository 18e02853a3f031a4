"""What the operator is told of nodes that are not well: once each, by a real HTTP server, also one that hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.slow_nodes import NodeSlowness
from malletrain.scavenger.notifications.notices import (
    MAX_BATCH,
    MAX_PENDING,
    MAX_TOLD,
    NodeNotice,
    NodeNoticeKind,
    NodeNoticeQueue,
)
from malletrain.scavenger.state_file import STATE_FILE
from malletrain.v1 import scavenger_pb2 as pb
from tests.scavenger.running import Running, running_scavenger
from tests.support.waiting import wait_until_async
from tests.support.webhooks import Receiver, received, webhook_file

HOUR = 3600.0
EVERY_KIND = tuple(NodeNoticeKind)


def notice(node: str = "n1", kind: NodeNoticeKind = NodeNoticeKind.SLOW, at: float = 1000.0) -> NodeNotice:
    return NodeNotice(node, kind, "its copies take 40% longer", at)


def rows(queue: NodeNoticeQueue) -> list[tuple[str, str]]:
    _, content = queue.batch()
    return [(row["name"], row["event"]) for row in json.loads(content)["nodes"]] if content else []


def test_the_same_is_told_once_in_some_hours_and_other_things_besides() -> None:
    queue = NodeNoticeQueue(EVERY_KIND, 6 * HOUR)
    assert queue.add_notice(notice())
    assert not queue.add_notice(notice(at=1000 + 5 * HOUR))
    assert queue.add_notice(notice(kind=NodeNoticeKind.CHECK_FAILED))
    assert queue.add_notice(notice("n2"))
    numbers, content = queue.batch()
    assert (numbers, json.loads(content)["id"]) == ((1, 2, 3), "nodes-1-3")
    assert rows(queue) == [("n1", "slow"), ("n1", "check-failed"), ("n2", "slow")]
    queue.done(numbers, 0)
    assert queue.batch() == ((), "")
    assert not queue.add_notice(notice(at=1000 + 5 * HOUR)), "told, though no longer in the queue"
    assert queue.add_notice(notice(at=1000 + 6 * HOUR))
    assert queue.add_notice(notice("n2", at=1000 - 7 * HOUR)), "the clock was set back by much"


def test_only_what_is_asked_for_is_told() -> None:
    queue = NodeNoticeQueue((NodeNoticeKind.QUARANTINED,), HOUR)
    assert not queue.add_notice(notice())
    assert queue.add_notice(notice(kind=NodeNoticeKind.QUARANTINED))


def test_queue_and_memory_have_limits_and_what_is_left_out_is_counted() -> None:
    queue = NodeNoticeQueue(EVERY_KIND, HOUR)
    for number in range(MAX_PENDING + 5):
        queue.add_notice(notice(f"n{number}"))
    assert (len(queue), queue.left_out) == (MAX_PENDING, 5)
    numbers, content = queue.batch()
    assert len(numbers) == MAX_BATCH
    assert json.loads(content)["leftOut"] == 5
    queue.done(numbers, 5)
    assert (len(queue), queue.left_out) == (MAX_PENDING - MAX_BATCH, 0)
    assert queue.add_notice(notice(f"n{MAX_PENDING}")), "what was left out is told the next time"
    for number in range(MAX_TOLD + 500):
        queue.done(queue.batch()[0], 0)
        queue.add_notice(notice(f"m{number}"))
    assert len(queue.to_json()["told"]) == MAX_TOLD
    queue.done(queue.batch()[0], 0)
    queue.add_notice(notice("long")._replace(reason="x" * 100_000))
    assert len(json.dumps(queue.batch()[1])) < 2000


def test_what_was_told_and_what_was_not_outlasts_a_restart() -> None:
    queue = NodeNoticeQueue(EVERY_KIND, HOUR)
    queue.add_notice(notice())
    queue.done((1,), 0)
    queue.add_notice(notice("n2"))
    again = NodeNoticeQueue(EVERY_KIND, HOUR, json.loads(json.dumps(queue.to_json())))
    assert rows(again) == [("n2", "slow")]
    assert not again.add_notice(notice())
    assert again.add_notice(notice("n3"))
    assert again.batch()[0] == (2, 3), "numbers go on"


@pytest.mark.parametrize(
    "content",
    [
        {"sequence": "x", "left_out": -1, "pending": [], "told": {}},
        {"sequence": True, "pending": {"a": ["n", "slow", "", 1, 0], "1": ["n"], "2": ["n", "odd", "", 1, 0]}},
        {"pending": {"1": ["n", "slow", "", float("nan"), 0], "2": None}, "told": [1, ["n", "odd", 1], ["n", "slow"]]},
    ],
)
def test_stored_content_that_makes_no_sense_is_left_out(content: dict[str, Any]) -> None:
    queue = NodeNoticeQueue(EVERY_KIND, HOUR, content)
    assert queue.to_json() == {"sequence": 0, "left_out": 0, "pending": {}, "told": []}


def told(receiver: Receiver) -> list[tuple[str, str]]:
    return [(row["name"], row["event"]) for _, body in receiver.requests for row in body["nodes"]]


def pending(state_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state_dir / STATE_FILE).read_text())["node_notices"]["webhook"]["pending"]
    return found


def settings(file: Path, **changes: Any) -> dict[str, Any]:
    own = {"webhook_file": file, "retry_seconds": 0.05, "retry_max_seconds": 0.1, "timeout_seconds": 20.0, **changes}
    return {"source": "static", "nodes": ("n1", "n2", "n3"), "quarantine_failures": 1.0, "notifications": own}


async def fail(running: Running, node: str) -> None:
    failure = pb.NodeFailure(node=node, reason="3 workers have failed there", by="2 owners")
    await running.stub.ReportNodeFailures(pb.ReportNodeFailuresRequest(failures=[failure]), timeout=10)


@pytest.mark.processes
async def test_the_operator_is_told_once_of_each_node_and_reason(tmp_path: Path) -> None:
    with received(503) as receiver:
        section = settings(webhook_file(tmp_path, receiver.url))
        async with running_scavenger(tmp_path, section) as running:
            for _ in range(3):
                await fail(running, "n1")
            for _ in range(2):
                running.service.slow_watch.take_slow_nodes(
                    (NodeSlowness("n2", True, "a"), NodeSlowness("n3", False, "b"))
                )
            await wait_until_async(lambda: len(receiver.requests) == 2, 60, "two attempts")
            await wait_until_async(lambda: not pending(tmp_path), 10, "it is noted")
        assert receiver.requests[0][1] == receiver.requests[1][1], "what is tried again is the same"
        row = receiver.requests[0][1]["nodes"][0]
        assert (row["reason"], row["id"]) == ("3 workers have failed there (2 owners)", 1)
        assert row["untilUnixSeconds"] > row["unixSeconds"]
        receiver.requests = receiver.requests[1:]
        async with running_scavenger(tmp_path, section) as running:
            await fail(running, "n1")
            await fail(running, "n3")
            await wait_until_async(lambda: len(receiver.requests) == 2, 60, "what is new")
    assert told(receiver) == [("n1", "quarantined"), ("n2", "slow"), ("n3", "called-slow"), ("n3", "quarantined")]


@pytest.mark.processes
async def test_a_receiver_that_hangs_holds_up_nothing_and_is_told_after_a_restart(tmp_path: Path) -> None:
    with received(0) as receiver:
        section = settings(webhook_file(tmp_path, receiver.url), timeout_seconds=60.0)
        async with running_scavenger(tmp_path, section) as running:
            await fail(running, "n1")
            await wait_until_async(lambda: receiver.requests, 60, "a request that hangs")
            await fail(running, "n2")
            assert await running.nodes() == ["n3"]
        receiver.requests = []
        async with running_scavenger(tmp_path, section):
            await wait_until_async(lambda: len(told(receiver)) >= 2, 60, "both")
    assert sorted(told(receiver)) == [("n1", "quarantined"), ("n2", "quarantined")]


async def test_a_receiver_that_can_not_be_used_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"scavenger\.notifications\.webhook_file"):
        async with running_scavenger(tmp_path, settings(tmp_path / "none")):
            pass
