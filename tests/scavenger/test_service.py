from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.service import ScavengerService, create
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import SourceError, SourceStatus
from malletrain.scavenger.sources.build import build_source
from malletrain.scavenger.state_file import TRACE_ORIGIN, ScavengerStateFile
from malletrain.scavenger.trace_files import write_trace
from malletrain.scavenger.withdrawals import Releaser
from malletrain.v1 import resources_pb2, scavenger_pb2
from tests.scavenger.machines import machine_of, recorder_of
from tests.scavenger.running import NOBODY, releasing, running_scavenger, serving
from tests.support.access import CREDENTIAL
from tests.support.channels import knowing_stand_ins, plain_channel, stand_in
from tests.support.waiting import wait_until_async

STATIC = {"source": "static", "nodes": ["n2", "n1", "n3"]}


def put_trace(folder: Path, *fragments: tuple[str, float, float], duration_s: float) -> dict[str, object]:
    """Settings that replay these fragments at 30 seconds per second, without debounce."""
    found = tuple(sorted((Fragment(*entry) for entry in fragments), key=lambda entry: entry.idle_from_s))
    earliest_s = min(0.0, found[0].idle_from_s)
    write_trace(
        Trace(found, tuple(dict.fromkeys(entry.node for entry in found)), duration_s, earliest_s), folder / "t.csv"
    )
    return {"source": "trace", "trace": folder / "t.csv", "speed": 30, "debounce_seconds": 0}


async def test_static_nodes_are_there_at_once_and_in_order(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.messages)
        (snapshot,) = watch.messages
        assert [node.name for node in snapshot.joined] == ["n2", "n1", "n3"]
        assert snapshot.revision >= 1
        assert not snapshot.source_ended
        assert abs(snapshot.joined[0].idle_since.ToNanoseconds() / 1e9 - time.time()) < 60
        assert await scavenger.nodes() == ["n2", "n1", "n3"]


TRAITS = {
    "n[1-2]": {"gpu_type": "a100", "gpus": 4, "features": ["ib"], "pool": "main", "memory_mib": 515000},
    "n2,n3": {"features": ["ib", "big"], "cores": 128},
}


async def test_static_nodes_are_what_the_settings_say(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, {**STATIC, "node_traits": TRAITS}) as scavenger:
        found = (await scavenger.stub.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=5)).nodes
        told = {node.name: (node.pool, node.gpu_type, node.gpus, tuple(node.features)) for node in found}
        a100 = ("main/a100x4", "a100", 4, ("ib",))
        assert told == {"n1": a100, "n2": a100, "n3": ("", "", 0, ("ib", "big"))}
        amounts = {node.name: (node.cores, node.memory_mib, node.gpu_memory_mib) for node in found}
        assert amounts == {"n1": (0, 515000, 0), "n2": (0, 515000, 0), "n3": (128, 0, 0)}


async def test_nodes_that_suit_a_job_are_counted(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, {**STATIC, "node_traits": TRAITS}) as scavenger:
        needs = resources_pb2.NodeNeeds(gpu="a100", constraint="ib&big", excluded_nodes=["n2"])
        request = scavenger_pb2.CountSuitableNodesRequest(needs=needs)
        found = await scavenger.stub.CountSuitableNodes(request, timeout=5)
        assert (found.known_nodes, found.suitable_nodes) == (3, 0)
        each = {"GPU a100": 2, "feature ib": 3, "feature big": 1, "not n2": 2}
        assert {need.text: need.nodes for need in found.needs} == each
        anything = await scavenger.stub.CountSuitableNodes(scavenger_pb2.CountSuitableNodesRequest(), timeout=5)
        assert anything.suitable_nodes == 3
        request.needs.constraint = "a&b|c"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await scavenger.stub.CountSuitableNodes(request, timeout=5)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "needs.constraint" in (error.value.details() or "")


async def test_nodes_of_one_group_are_counted(tmp_path: Path) -> None:
    nodes = [f"n{number}" for number in range(1, 7)]
    topology = {"n[1-2]": ["row1", "rack1"], "n[3-5]": ["row1", "rack2"]}
    async with running_scavenger(tmp_path, {**STATIC, "nodes": nodes, "topology": topology}) as scavenger:
        request = scavenger_pb2.CountSuitableNodesRequest(topology=resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE)
        found = {}
        for level in (0, 1, 2, 3):
            request.topology_level = level
            answer = await scavenger.stub.CountSuitableNodes(request, timeout=5)
            found[level] = answer.groups, answer.largest_group_nodes
        assert found == {0: (2, 3), 1: (1, 5), 2: (2, 3), 3: (0, 0)}
        request.topology_level = 2
        request.needs.excluded_nodes.extend(["n3", "n4"])
        answer = await scavenger.stub.CountSuitableNodes(request, timeout=5)
        assert (answer.suitable_nodes, answer.groups, answer.largest_group_nodes) == (4, 2, 2)
        anything = await scavenger.stub.CountSuitableNodes(scavenger_pb2.CountSuitableNodesRequest(), timeout=5)
        assert not anything.HasField("largest_group_nodes")
        assert not answer.HasField("replica_nodes")
        request = scavenger_pb2.CountSuitableNodesRequest(topology=resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE_REPLICA)
        for size, replica_nodes in ((2, 4), (3, 3), (4, 0)):
            request.nodes_per_replica = size
            answer = await scavenger.stub.CountSuitableNodes(request, timeout=5)
            assert (answer.groups, answer.largest_group_nodes, answer.replica_nodes) == (2, 3, replica_nodes)
        request.nodes_per_replica = 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await scavenger.stub.CountSuitableNodes(request, timeout=5)
        assert "nodes_per_replica: expected at least 2" in (error.value.details() or "")
        request.topology_level = 9
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await scavenger.stub.CountSuitableNodes(request, timeout=5)
        assert "topology_level: expected 0 to 8" in (error.value.details() or "")


async def test_nodes_of_which_an_amount_is_not_known_are_counted(tmp_path: Path) -> None:
    request = scavenger_pb2.CountSuitableNodesRequest(
        needs=resources_pb2.NodeNeeds(gpu_memory_mib=40960, gpus=4, cores=64, memory_mib=1 << 18)
    )
    for by_kind, suitable, unknown in (({}, 0, 2), ({"A100": 81920}, 2, 0), ({"A100": 32768}, 0, 0)):
        section = {**STATIC, "node_traits": TRAITS, "gpu_memory_mib": by_kind}
        async with running_scavenger(tmp_path, section) as scavenger:
            found = await scavenger.stub.CountSuitableNodes(request, timeout=5)
            assert (found.known_nodes, found.suitable_nodes) == (3, 0)
            assert [(need.text, need.nodes, need.unknown_nodes) for need in found.needs] == [
                ("GPUs of at least 40 GiB", suitable, unknown),
                ("at least 4 GPUs", 2, 0),
                ("at least 64 cores", 1, 2),
                ("at least 256 GiB of memory", 2, 1),
            ]


@pytest.mark.parametrize(
    ("traits", "field"),
    [
        ({"n1": {"gpu_memory_mib": 8}}, "scavenger.node_traits.n1.gpus"),
        ({"n9": {}}, "scavenger.node_traits.n9"),
        ({"n[1": {}}, "scavenger.node_traits.n[1"),
        ({"n1": {"gpu_type": "a100"}}, "scavenger.node_traits.n1.gpus"),
    ],
)
def test_traits_that_can_not_be_are_refused(tmp_path: Path, traits: dict[str, Any], field: str) -> None:
    section = ScavengerSettings(**{**STATIC, "node_traits": traits})
    with pytest.raises(InvalidInputError) as error:
        build_source(section, Settings(state_dir=tmp_path), ScavengerStateFile(tmp_path), SystemClock())
    assert error.value.field == field


async def test_nodes_are_listed_in_pages(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        listed: list[list[str]] = []
        token = ""
        while not listed or token:
            request = scavenger_pb2.ListNodesRequest(page_size=2, page_token=token)
            response = await scavenger.stub.ListNodes(request, timeout=5)
            listed.append([node.name for node in response.nodes])
            token = response.next_page_token
        assert listed == [["n2", "n1"], ["n3"]]


async def test_two_watchers_see_a_trace_and_the_late_one_gets_the_present_first(tmp_path: Path) -> None:
    section = put_trace(
        tmp_path, ("a", -600, 30), ("b", 10, 50), ("a", 40, 70), ("c", 20, 300), ("d", 60, 61), duration_s=90
    )
    async with running_scavenger(tmp_path, section) as scavenger:
        early = scavenger.watch()
        await wait_until_async(lambda: "c" in early.idle)
        late = scavenger.watch()
        await wait_until_async(lambda: early.source_ended and late.source_ended)
        assert early.idle == late.idle == {"c"}
        changes = [({node.name for node in m.joined}, set(m.left)) for m in early.messages[1:]]
        joins = [name for joined, _ in changes for name in joined]
        leaves = [name for _, left in changes for name in left]
        assert sorted([*(node.name for node in early.messages[0].joined), *joins]) == ["a", "a", "b", "c", "d"]
        assert sorted(leaves) == ["a", "a", "b", "d"]
        assert {"c"} <= {node.name for node in late.messages[0].joined}
        for watch in (early, late):
            revisions = [message.revision for message in watch.messages]
            assert revisions == sorted(set(revisions))
            times = [message.event_time.ToNanoseconds() for message in watch.messages]
            assert times == sorted(times)
        tail = late.messages[1:]
        assert tail == early.messages[len(early.messages) - len(tail) :]


async def test_ages_and_stays_are_wall_clock_seconds(tmp_path: Path) -> None:
    section = put_trace(tmp_path, ("a", -600, 6000), duration_s=9000)
    history = tuple(Fragment(f"n{i}", i, i + 1200.0 + 6 * i) for i in range(50))
    write_trace(Trace(history, tuple(entry.node for entry in history), 3000.0), tmp_path / "h.csv")
    async with running_scavenger(tmp_path, section | {"history_path": tmp_path / "h.csv"}) as scavenger:
        response = await scavenger.stub.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=5)
        (node,) = response.nodes
        origin = ScavengerStateFile(tmp_path).section(TRACE_ORIGIN)["origin_unix_seconds"]
        assert node.idle_since.ToNanoseconds() / 1e9 == pytest.approx(origin - 20, abs=1e-6)
        # Fragments of 1200 s to 1500 s are 40 s to 50 s here, and this one is about 20 s old.
        assert 0 < node.expected_stay_seconds <= 30


async def test_debounce_keeps_short_fragments_out(tmp_path: Path) -> None:
    section = put_trace(tmp_path, ("a", 6, 12), ("b", 0, 500), ("a", 60, 500), duration_s=90)
    async with running_scavenger(tmp_path, section | {"debounce_seconds": 0.4}) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"a", "b"})
        origin = ScavengerStateFile(tmp_path).section(TRACE_ORIGIN)["origin_unix_seconds"]
        joined = {
            node.name: message.event_time.ToNanoseconds() / 1e9 - origin
            for message in watch.messages
            for node in message.joined
        }
        assert joined["b"] >= 0.4 - 1e-6
        assert joined["a"] >= 1.4 - 1e-6
        assert not any(message.left for message in watch.messages)


async def test_a_reclaimed_node_has_left_before_jobmanager_confirms(tmp_path: Path) -> None:
    async with releasing() as (releases, address), running_scavenger(tmp_path, STATIC, address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.messages)
        call = asyncio.create_task(scavenger.reclaim(["n3", "n1", "x9", "n1"]))
        await wait_until_async(lambda: releases.asked)
        await wait_until_async(lambda: watch.idle == {"n2"})
        assert not call.done()
        assert list(watch.messages[-1].left) == ["n1", "n3"]
        releases.may_release.set()
        response = await call
        assert list(response.released) == ["n3", "n1"]
        assert list(response.unknown) == ["x9"]
        assert releases.asked == [["n3", "n1"]]
        # Asked again, the confirmation comes again; a node that was never ours bothers nobody.
        assert list((await scavenger.reclaim(["n1"])).released) == ["n1"]
        assert list((await scavenger.reclaim(["x9"])).unknown) == ["x9"]
        assert releases.asked[1:] == [["n1"]]


async def test_a_reclaimed_node_comes_back_after_its_hold(tmp_path: Path) -> None:
    async with releasing() as (releases, address), running_scavenger(tmp_path, STATIC, address) as scavenger:
        releases.may_release.set()
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.messages)
        await scavenger.reclaim(["n1"], hold_seconds=0.3)
        await wait_until_async(lambda: len(watch.messages) == 3)
        left, back = watch.messages[1:]
        assert list(left.left) == ["n1"]
        assert [node.name for node in back.joined] == ["n1"]
        assert back.event_time.ToNanoseconds() - left.event_time.ToNanoseconds() >= 0.3e9
        assert await scavenger.nodes() == ["n2", "n1", "n3"]


async def test_only_what_is_confirmed_is_released(tmp_path: Path) -> None:
    section = STATIC | {"release_deadline_seconds": 0.2}
    async with releasing() as (releases, address), running_scavenger(tmp_path, section, address) as scavenger:
        await scavenger.nodes()
        late = await scavenger.reclaim(["n2"])
        assert list(late.released) == []
        assert list(late.unknown) == []
        releases.keeps = {"n3"}
        releases.may_release.set()
        assert list((await scavenger.reclaim(["n1", "n3"])).released) == ["n1"]


async def test_jobmanager_gets_less_than_the_caller_has_left() -> None:
    async with releasing() as (_, address):
        releaser = Releaser(open_channel(stand_in("job_manager", address), CREDENTIAL), deadline_seconds=60)
        async with asyncio.timeout(20):
            assert await releaser.release(["n1"], remaining=0.5) == []
        await releaser.close()


async def test_without_jobmanager_the_node_leaves_all_the_same_and_stays_out_over_a_restart(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.messages)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scavenger.reclaim(["n1"])
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "the nodes have left, but JobManager" in (caught.value.details() or "")
        await wait_until_async(lambda: watch.idle == {"n2", "n3"})
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        assert await scavenger.nodes() == ["n2", "n3"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (scavenger_pb2.ReclaimNodesRequest(), "nodes"),
        (scavenger_pb2.ReclaimNodesRequest(nodes=["n1", ""]), "nodes[1]"),
        (scavenger_pb2.ReclaimNodesRequest(nodes=["n1"], hold_seconds=-1), "hold_seconds"),
        (scavenger_pb2.ReclaimNodesRequest(nodes=["n1"], hold_seconds=math.nan), "hold_seconds"),
        (scavenger_pb2.ReclaimNodesRequest(nodes=["n1"], hold_seconds=math.inf), "hold_seconds"),
        (scavenger_pb2.ListNodesRequest(page_size=-1), "page_size"),
        (scavenger_pb2.ListNodesRequest(page_token="n9"), "page_token"),
    ],
)
async def test_bad_requests_name_the_field_and_change_nothing(
    tmp_path: Path, request_: scavenger_pb2.ReclaimNodesRequest | scavenger_pb2.ListNodesRequest, field: str
) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        await scavenger.nodes()
        reclaims = isinstance(request_, scavenger_pb2.ReclaimNodesRequest)
        method: Any = scavenger.stub.ReclaimNodes if reclaims else scavenger.stub.ListNodes
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request_, timeout=5)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(f"{field}: expected ")
        assert len(await scavenger.nodes()) == 3


class Moody:
    """A source that can't be read at first, then tells of a node, then fails again."""

    def __init__(self) -> None:
        self.failures = 0
        self.excluded: dict[str, float] = {}
        self.may_speak = asyncio.Event()

    def order(self) -> Sequence[str]:
        return ()

    def past_lengths(self) -> Sequence[float]:
        return ()

    def status(self) -> SourceStatus:
        return SourceStatus()

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        self.excluded = dict(until)

    def move_times(self, seconds: float) -> None:
        raise AssertionError("the clock is not set here")

    async def close(self) -> None:
        return

    async def observations(self) -> AsyncIterator[Observation]:
        self.failures += 1
        if self.failures == 1:
            raise SourceError("the scheduler does not answer")
        await self.may_speak.wait()
        now = SystemClock().time()
        yield Observation(now, {"n1": now})
        raise FileNotFoundError("squeue")


def service_of(source: Moody, folder: Path) -> ScavengerService:
    return ScavengerService(
        source,
        machine_of(failures=1),
        recorder_of(folder),
        Releaser(plain_channel(NOBODY, CREDENTIAL), 0.1),
        ScavengerStateFile(folder),
        ScavengerSettings(),
        SystemClock(),
    )


async def test_nodes_that_are_reclaimed_or_quarantined_are_given_back_by_the_source_too(tmp_path: Path) -> None:
    source = Moody()
    async with serving(service_of(source, tmp_path)) as scavenger:
        with pytest.raises(grpc.aio.AioRpcError, match="can't confirm"):
            await scavenger.stub.ReclaimNodes(
                scavenger_pb2.ReclaimNodesRequest(nodes=["n1"], hold_seconds=60), timeout=5
            )
        assert set(source.excluded) == {"n1"}, "JobManager does not answer, and the node is given back all the same"
        failures = [scavenger_pb2.NodeFailure(node="n2", reason="a broken GPU")]
        await scavenger.stub.ReportNodeFailures(scavenger_pb2.ReportNodeFailuresRequest(failures=failures), timeout=5)
        assert set(source.excluded) == {"n1", "n2"}
        assert all(until > SystemClock().time() for until in source.excluded.values())


async def test_a_source_that_fails_harms_nobody_and_unknown_is_not_none(tmp_path: Path) -> None:
    source = Moody()
    service = service_of(source, tmp_path)
    async with serving(service) as scavenger:
        watch = scavenger.watch()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scavenger.nodes()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert watch.messages == []
        source.may_speak.set()
        await wait_until_async(lambda: watch.messages)
        assert watch.idle == {"n1"}
        await wait_until_async(lambda: source.failures >= 3)
        assert await scavenger.nodes() == ["n1"]


async def test_streams_end_with_the_service(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.messages)
        await scavenger.service.close()
        await wait_until_async(lambda: watch.ended)


async def test_a_replay_goes_on_after_a_kill(tmp_path: Path) -> None:
    section = put_trace(tmp_path, ("a", 0, 30), ("b", 31, 3000), duration_s=4000)
    settings = knowing_stand_ins(Settings(state_dir=tmp_path))
    model = ScavengerSettings.model_validate(section)
    # A service that never came to its close, as one that was killed.
    create(settings, model, SystemClock(), CREDENTIAL)
    async with running_scavenger(tmp_path, section) as first:
        watch = first.watch()
        await wait_until_async(lambda: "b" in watch.idle)
        killed = create(settings, model, SystemClock(), CREDENTIAL)
        async with serving(killed) as second:
            snapshot = second.watch()
            await wait_until_async(lambda: snapshot.messages)
            assert snapshot.idle == {"b"}
            (joined,) = (m.joined[0] for m in watch.messages if any(node.name == "b" for node in m.joined))
            assert snapshot.messages[0].joined[0].idle_since == joined.idle_since


async def test_a_bad_trace_is_told_at_the_start(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("node,idle_from_s,idle_until_s\na,0,100\na,50,200\n")
    section = ScavengerSettings(source="trace", trace=trace)
    with pytest.raises(InvalidInputError, match=r"t\.csv:3: expected no overlap"):
        create(knowing_stand_ins(Settings(state_dir=tmp_path)), section, SystemClock(), CREDENTIAL)
