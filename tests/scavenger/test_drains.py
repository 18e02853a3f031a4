"""Nodes that operators take out of use: the rules, and a real Scavenger over a restart."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.machine.drains import Drain, DrainSet, read_drains
from malletrain.scavenger.machine.idle_set import IdleSet
from malletrain.v1 import scavenger_pb2 as pb
from tests.scavenger.running import Running, releasing, running_scavenger
from tests.support.waiting import wait_until_async

STATIC = {"source": "static", "nodes": ["n1", "n2", "n3"]}
FIRST, SECOND = Drain("disk", "ada", 1.0), Drain("net", "bob", 2.0)
NAMES = st.sampled_from(["n1", "n2", "n3"])


@given(
    st.lists(
        st.tuples(st.sampled_from(["drain", "all", "resume"]), st.lists(NAMES, max_size=3)),
        max_size=12,
    )
)
def test_what_is_drained_follows_from_the_calls(calls: list[tuple[str, list[str]]]) -> None:
    drains, everything, drained = DrainSet(), False, set()
    for call, names in calls:
        match call:
            case "drain":
                drains, drained = drains.drained(names, FIRST), drained | set(names)
            case "all":
                drains, everything = drains.all_drained(FIRST), True
            case _:
                drains, drained = drains.resumed(names), drained - set(names)
    assert {name for name in ("n1", "n2", "n3") if name in drains} == ({"n1", "n2", "n3"} if everything else drained)
    assert read_drains(json.loads(json.dumps(drains.to_json()))) == drains


def test_a_second_drain_keeps_the_reason_of_the_first() -> None:
    drains = DrainSet().drained(["n1"], FIRST).drained(["n1", "n2"], SECOND)
    assert drains.nodes == {"n1": FIRST, "n2": SECOND}
    assert drains.all_drained(FIRST).all_drained(SECOND).everything == FIRST


@pytest.mark.parametrize(
    "stored",
    [{}, {"nodes": []}, {"all": 1, "nodes": {"n1": 3}}, {"nodes": {"n1": {"reason": "x", "user": "y"}}}],
)
def test_what_is_no_drain_is_left_out(stored: dict[str, object]) -> None:
    assert read_drains(stored) == DrainSet()


def test_drained_nodes_are_out_at_once_and_back_when_they_are_resumed() -> None:
    idle = IdleSet(0.0)
    idle.observe(0.0, {"n1": 0.0, "n2": 0.0})
    assert idle.drain(1.0, DrainSet().drained(["n1"], FIRST)).left == ("n1",)
    assert idle.next_deadline() is None
    assert not idle.observe(2.0, {"n1": 0.0, "n2": 0.0})
    joined = idle.drain(3.0, DrainSet()).joined
    assert [node.name for node in joined] == ["n1"]


async def drain(scavenger: Running, *nodes: str, everything: bool = False, reason: str = "") -> pb.DrainNodesResponse:
    request = pb.DrainNodesRequest(nodes=nodes, all=everything, reason=reason)
    return await scavenger.stub.DrainNodes(request, timeout=5)


async def test_a_drained_node_leaves_stays_out_over_a_restart_and_comes_back(tmp_path: Path) -> None:
    async with releasing() as (releases, address):
        releases.may_release.set()
        async with running_scavenger(tmp_path, STATIC, address) as scavenger:
            watch = scavenger.watch()
            await wait_until_async(lambda: watch.messages)
            done = await drain(scavenger, "n2", "later", reason="a new disk")
            assert list(done.released) == ["n2"]
            assert releases.asked == [["n2"]]
            assert watch.idle == {"n1", "n3"}
        async with running_scavenger(tmp_path, STATIC, address) as scavenger:
            assert await scavenger.nodes() == ["n1", "n3"]
            entries = (await scavenger.stub.GetStatus(pb.GetStatusRequest(), timeout=5)).drained
            assert [(entry.name, entry.reason, entry.user) for entry in entries] == [
                ("later", "a new disk", "test"),
                ("n2", "a new disk", "test"),
            ]
            resumed = await scavenger.stub.ResumeNodes(pb.ResumeNodesRequest(nodes=["n2", "n1"]), timeout=5)
            assert list(resumed.resumed) == ["n2"]
            assert await scavenger.nodes() == ["n1", "n2", "n3"]


async def test_a_quarantined_node_stays_out_over_a_restart_says_why_and_can_be_resumed(tmp_path: Path) -> None:
    failure = pb.NodeFailure(node="n2", reason="fails here only", by="j000001 (ada), j000002 (bob)")
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        assert await scavenger.nodes() == ["n1", "n2", "n3"]
        await scavenger.stub.ReportNodeFailures(pb.ReportNodeFailuresRequest(failures=[failure] * 3), timeout=5)
        assert await scavenger.nodes() == ["n1", "n3"]
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        assert await scavenger.nodes() == ["n1", "n3"]
        (entry,) = (await scavenger.stub.GetStatus(pb.GetStatusRequest(), timeout=5)).quarantined
        assert (entry.name, entry.failures, entry.reason, entry.by) == ("n2", 3, failure.reason, failure.by)
        assert entry.until.seconds > entry.since.seconds
        resumed = await scavenger.stub.ResumeNodes(pb.ResumeNodesRequest(nodes=["n2", "n1"]), timeout=5)
        assert (list(resumed.released), list(resumed.resumed)) == (["n2"], [])
        assert await scavenger.nodes() == ["n1", "n2", "n3"]
        assert not (await scavenger.stub.GetStatus(pb.GetStatusRequest(), timeout=5)).quarantined
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        assert await scavenger.nodes() == ["n1", "n2", "n3"]


async def test_all_nodes_can_be_given_back_at_once(tmp_path: Path) -> None:
    async with releasing() as (releases, address), running_scavenger(tmp_path, STATIC, address) as scavenger:
        releases.may_release.set()
        releases.keeps = {"n3"}
        assert await scavenger.nodes() == ["n1", "n2", "n3"]
        done = await drain(scavenger, everything=True)
        assert (list(done.released), list(done.unconfirmed)) == (["n1", "n2"], ["n3"])
        assert await scavenger.nodes() == []
        still = await scavenger.stub.ResumeNodes(pb.ResumeNodesRequest(nodes=["n1"]), timeout=5)
        assert not still.resumed
        assert await scavenger.nodes() == []
        back = await scavenger.stub.ResumeNodes(pb.ResumeNodesRequest(all=True), timeout=5)
        assert back.all_resumed
        assert await scavenger.nodes() == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (pb.DrainNodesRequest(), "nodes: expected at least one node"),
        (pb.DrainNodesRequest(nodes=["n1"], all=True), "nodes: expected none where all is set"),
        (pb.DrainNodesRequest(nodes=["n1"], reason="x" * 501), "reason: expected at most 500 characters"),
        (pb.DrainNodesRequest(nodes=[" n1"]), "nodes"),
    ],
)
async def test_a_drain_that_makes_no_sense_changes_nothing(
    tmp_path: Path, request_: pb.DrainNodesRequest, said: str
) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scavenger.stub.DrainNodes(request_, timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert said in (caught.value.details() or "")
        assert await scavenger.nodes() == ["n1", "n2", "n3"]


async def test_a_drain_that_can_not_be_stored_is_not_done(tmp_path: Path) -> None:
    async with running_scavenger(tmp_path, STATIC) as scavenger:
        assert await scavenger.nodes() == ["n1", "n2", "n3"]
        (tmp_path / "scavenger.json").unlink(missing_ok=True)
        (tmp_path / "scavenger.json").mkdir()
        with pytest.raises(grpc.aio.AioRpcError, match="nothing is changed"):
            await drain(scavenger, "n1")
        assert await scavenger.nodes() == ["n1", "n2", "n3"]
