"""The stays that the Allocator computes are those that the Scavenger lists."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from pathlib import Path

import pytest

from malletrain.allocator.machine.node_stays import NodeStays
from malletrain.allocator.wire.messages import node_from_proto, stays_from_proto
from malletrain.scavenger.machine.observations import NodeFacts, Observation
from malletrain.scavenger.machine.stays import LearnedStay, StayChanges
from malletrain.scavenger.service import ScavengerService
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import SourceStatus
from malletrain.scavenger.state_file import ScavengerStateFile
from malletrain.scavenger.withdrawals import Releaser
from malletrain.v1 import scavenger_pb2
from tests.scavenger.machines import machine_of, recorder_of
from tests.scavenger.running import NOBODY, Running, serving
from tests.support.access import CREDENTIAL
from tests.support.channels import plain_channel
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until_async

START = 1e9


class Told:
    """A source that tells what a test puts in."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Observation] = asyncio.Queue()

    def order(self) -> Sequence[str]:
        return ()

    def past_lengths(self) -> Sequence[float]:
        return ()

    def status(self) -> SourceStatus:
        return SourceStatus()

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        return

    def move_times(self, seconds: float) -> None:
        return

    async def close(self) -> None:
        return

    async def observations(self) -> AsyncIterator[Observation]:
        while True:
            yield await self.queue.get()


class Both:
    """A Scavenger by itself, and an Allocator's view of its nodes' stays."""

    def __init__(self, folder: Path, past: Sequence[float] = (), start: float = START) -> None:
        self.source, self.clock = Told(), ManualClock(start)
        self.stays = NodeStays()
        self.facts: dict[str, tuple[str, int]] = {}
        self.service = ScavengerService(
            self.source,
            machine_of(past_lengths=past, horizon_seconds=7200, begun=start),
            recorder_of(folder),
            Releaser(plain_channel(NOBODY, CREDENTIAL), 0.1),
            ScavengerStateFile(folder),
            ScavengerSettings(),
            self.clock,
        )

    async def asked(self, scavenger: Running) -> scavenger_pb2.GetStaysResponse:
        request = scavenger_pb2.GetStaysRequest(known=self.stays.token)
        response = await scavenger.stub.GetStays(request, timeout=20)
        self.stays.take_report(stays_from_proto(response), self.clock.time())
        return response

    async def compare(self, scavenger: Running) -> scavenger_pb2.GetStaysResponse:
        """Ask, and compare with the listing: the same nodes with the same stays."""
        told = await self.asked(scavenger)
        response = await scavenger.stub.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=20)
        listed = [node_from_proto(node) for node in response.nodes]
        found = self.stays.seconds([node.name for node in listed], self.clock.time())
        self.facts |= {node.name: (node.pool, node.gpus) for node in self.stays.changed(found)}
        assert [(name, *self.facts[name]) for name in found] == [(n.name, n.pool, n.gpus) for n in listed]
        assert list(found.values()) == pytest.approx([node.expected_stay_seconds for node in listed], rel=1e-12, abs=0)
        return told


@pytest.mark.parametrize("learned", [True, False])
async def test_stays_are_those_of_the_listing_at_any_age_and_end(tmp_path: Path, learned: bool) -> None:
    seeded = random.Random(7)
    both = Both(tmp_path, [seeded.expovariate(1 / 900) for _ in range(400)] if learned else ())
    since = {f"n{number}": START - seeded.expovariate(1 / 2000) for number in range(60)}
    ends = {name: START + seeded.uniform(-100, 9000) for name in sorted(since)[::3]}
    facts = {name: NodeFacts("main", "a100", 4) for name in sorted(since)[::2]}
    async with serving(both.service) as scavenger:
        both.source.queue.put_nowait(Observation(START, dict(since), ends=ends, facts=facts))
        first = await both.compare(scavenger)
        assert first.complete
        assert len(first.nodes) == 60
        assert first.HasField("curve") == learned
        second = await both.compare(scavenger)
        assert (len(second.nodes), second.complete, second.same_curve) == (0, False, True)

        both.clock.advance(20)
        left = dict(list(since.items())[5:])
        later = {**ends, "n59": START + 60, "n6": START + 30}
        moved = {**left, "n58": START + 10, "n57": left["n57"] - 500, "new": START + 15}
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.messages)
        both.source.queue.put_nowait(Observation(START + 20, moved, ends=later, facts=facts))
        await wait_until_async(lambda: "new" in watch.idle)
        third = await both.compare(scavenger)
        assert {node.name for node in third.nodes} <= {"n59", "n6", "n58", "n57", "new"}
        assert not third.complete

        both.clock.advance(4000)  # the curve is fitted again
        assert not (await both.compare(scavenger)).same_curve or not learned
        assert await both.compare(scavenger)


async def test_a_scavenger_that_was_started_again_tells_everything(tmp_path: Path) -> None:
    both = Both(tmp_path, [100.0, 200.0])
    async with serving(both.service) as scavenger:
        both.source.queue.put_nowait(Observation(START, {"a": START - 5, "b": START - 6}))
        await both.compare(scavenger)
    again = Both(tmp_path, start=START + 1)
    again.stays = both.stays
    async with serving(again.service) as scavenger:
        again.source.queue.put_nowait(Observation(START, {"b": START - 50}))
        told = await again.compare(scavenger)
        assert (told.complete, [node.name for node in told.nodes]) == (True, ["b"])
        assert not told.HasField("curve")


@pytest.mark.parametrize("known", ["", "x", "1:2", "::", "life", "life:1", "life:x:1", "lives:0:1"])
def test_who_shows_an_unknown_token_is_told_everything(known: str) -> None:
    changes, learned = StayChanges("life"), LearnedStay(horizon_seconds=60)
    observed = Observation(START, {"a": START})
    assert changes.news("", observed.idle, observed, learned).token == "life:0:1"
    news = changes.news(known, observed.idle, observed, learned)
    assert (news.complete, news.same_curve, [node.name for node in news.nodes]) == (True, False, ["a"])
    assert changes.news(news.token, observed.idle, observed, learned).nodes == ()


async def test_times_move_with_a_clock_that_was_set(tmp_path: Path) -> None:
    both = Both(tmp_path, [100.0, 2000.0, 300.0])
    async with serving(both.service) as scavenger:
        both.source.queue.put_nowait(Observation(START, {"a": START - 50}))
        await both.compare(scavenger)
        both.clock.advance(3600)
        both.service.move_times(3600)
        told = await both.compare(scavenger)
        assert [node.idle_since_unix_seconds for node in told.nodes] == [START + 3550]


def test_between_reports_stays_follow_from_the_ages_by_the_scavengers_clock() -> None:
    curve = scavenger_pb2.SurvivalSteps(seconds=[0, 100], survival=[1, 0.5], tail_rate=0.01)
    message = scavenger_pb2.GetStaysResponse(
        token="t",
        unix_seconds=1000,
        horizon_seconds=1e6,
        curve=curve,
        complete=True,
        nodes=[scavenger_pb2.StayingNode(name="a", idle_since_unix_seconds=1000)],
    )
    stays, names = NodeStays(), ("a", "unknown")
    assert stays.seconds(names, 0.0) == {}
    stays.take_report(stays_from_proto(message), now=400.0)  # our clock is ten minutes late
    for now, seconds in ((400.0, 100 + 0.5 * 100), (460.0, 40 + 0.5 * 100), (4000.0, 100.0)):
        assert stays.seconds(names, now) == pytest.approx({"a": seconds})
