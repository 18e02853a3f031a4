"""Nodes that are slower than their pool by our own measure, which real agents tell to a real registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.operate.doctor_checks import judge_slow_nodes
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry, speed_of
from malletrain.scavenger.machine.slow_nodes import CalledSlow, NodeSpeed, NodeSpeeds, judge, read_speeds
from malletrain.scavenger.slow_node_watch import SlowNodeWatch
from malletrain.scavenger.sources.schedulers.settings import NodeCheckSettings
from malletrain.v1 import agent_pb2, scavenger_pb2
from tests.agent.running import RunningAgent
from tests.support.certificates import certificate
from tests.support.waiting import wait_until_async

USUAL = NodeSpeed(0.001, 0.004)


def measured(speeds: NodeSpeeds, figures: Mapping[str, NodeSpeed], often: int = 3) -> NodeSpeeds:
    """Each node is measured so often, by figures that differ a little."""
    for number in range(often):
        for name, speed in figures.items():
            assert speeds.take_measure(name, NodeSpeed(*(seconds * (1 + number / 1000) for seconds in speed)))
    return speeds


def pool(*names: str, speed: NodeSpeed = USUAL) -> dict[str, NodeSpeed]:
    return dict.fromkeys(names, speed)


def test_a_node_is_slow_by_more_than_a_share_of_its_pool() -> None:
    figures = pool("a", "b", "c", "d", "e") | {
        "core": NodeSpeed(0.0015, 0.004),
        "memory": NodeSpeed(0.001, 0.008),
        "nearly": NodeSpeed(0.00119, 0.0047),
        "fast": NodeSpeed(0.0005, 0.002),
    }
    found = measured(NodeSpeeds(), figures).slow(lambda _: "main")
    assert [(slow.name, slow.what) for slow in found] == [("core", "core"), ("memory", "memory")]
    assert [slow.share for slow in found] == pytest.approx([0.5, 1.0])


def test_pools_are_judged_each_by_itself_and_nodes_that_are_gone_not_at_all() -> None:
    figures = pool("a1", "a2", "a3", "a4") | pool("b1", "b2", "b3", "b4", speed=NodeSpeed(0.002, 0.009))
    speeds = measured(NodeSpeeds(), figures | pool("gone", speed=NodeSpeed(0.1, 0.1)))
    assert speeds.slow(lambda name: None if name == "gone" else name[0]) == []
    assert [slow.name for slow in speeds.slow(lambda _: "one")] == ["gone"]


def test_nobody_is_judged_by_two_measures_or_among_three_nodes() -> None:
    slow = {"z": NodeSpeed(0.01, 0.04)}
    assert measured(NodeSpeeds(), pool("a", "b", "c", "d") | slow, often=2).slow(lambda _: "") == []
    assert measured(NodeSpeeds(), pool("a", "b") | slow).slow(lambda _: "") == []
    assert len(measured(NodeSpeeds(), pool("a", "b", "c") | slow).slow(lambda _: "")) == 1


def test_one_bad_measure_of_three_says_nothing_and_a_repaired_node_is_well_again() -> None:
    speeds = measured(NodeSpeeds(), pool("a", "b", "c", "d"))
    speeds.take_measure("a", NodeSpeed(0.02, 0.08))
    assert speeds.slow(lambda _: "") == []
    speeds.take_measure("a", NodeSpeed(0.03, 0.08))
    assert [slow.name for slow in speeds.slow(lambda _: "")] == ["a"]
    measured(speeds, {"a": NodeSpeed(0.00101, 0.004)}, often=2)
    assert speeds.slow(lambda _: "") == []


def test_an_agent_that_connects_again_tells_nothing_new_and_a_restart_forgets_nothing() -> None:
    speeds = measured(NodeSpeeds(), pool("a", "b", "c") | {"z": NodeSpeed(0.01, 0.04)})
    assert not speeds.take_measure("a", USUAL)
    kept = read_speeds(json.loads(json.dumps(speeds.to_json())), 0.2)
    assert kept.slow(lambda _: "") == speeds.slow(lambda _: "") != []
    damaged = {"a": 1, "b": ["x"], "c": [[1]], "d": [[0.0, 1.0]], "e": [[float("nan"), 1.0]]}
    assert read_speeds(damaged, 0.2).to_json() == {}


def test_our_own_measure_counts_by_itself() -> None:
    slow = measured(NodeSpeeds(), pool("a", "b", "c") | {"z": NodeSpeed(0.002, 0.004)}).slow(lambda _: "")
    (node,) = judge([CalledSlow("z", 0.4, 1, "j1")], slow)
    assert node.counts
    assert node.reason.startswith("its core takes 100% longer than its pool's; its workers take 40% longer")


def test_the_scavenger_stores_what_is_new_once_and_tells_who_is_slow() -> None:
    stored: list[Mapping[str, Any]] = []
    watch = SlowNodeWatch(None, NodeSpeeds(), store=stored.append)
    figures = pool("a", "b", "c") | {"z": NodeSpeed(0.01, 0.04)}
    for number in range(3):
        for name, speed in figures.items():
            watch.note_speed(name, NodeSpeed(speed.hash_seconds * (1 + number / 1000), speed.copy_seconds))
    watch.judge()
    watch.judge()
    assert watch.counting == ["z"]
    assert [set(content) for content in stored] == [{"a", "b", "c", "z"}]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 2e4, float("nan"), float("inf")])
def test_figures_that_can_be_no_times_are_refused(seconds: float) -> None:
    told = agent_pb2.AgentIntroduction(speed=agent_pb2.NodeSpeed(hash_seconds=0.1, copy_seconds=seconds))
    with pytest.raises(InvalidInputError, match=r"introduction\.speed"):
        speed_of(told)


def test_where_a_main_job_may_be_on_the_node_nothing_is_measured() -> None:
    option = "--check-speed-seconds"
    assert option in NodeCheckSettings().agent_options()
    assert option not in NodeCheckSettings().agent_options(alone=False)
    assert option not in NodeCheckSettings(speed_seconds=0).agent_options()


def test_doctor_names_slow_nodes() -> None:
    node = scavenger_pb2.SlowNodeStatus(name="n2", counts=True, reason="its core")
    called = scavenger_pb2.SlowNodeStatus(name="n3", counts=False, reason="jobs")
    assert list(judge_slow_nodes([called])) == []
    (finding,) = judge_slow_nodes([called, node])
    assert (finding.ok, finding.found) == (False, "1 counts as slow: n2: its core")


@pytest.mark.processes
async def test_a_real_agent_measures_its_node_and_tells_it(tmp_path: Path) -> None:
    told: list[tuple[str, NodeSpeed]] = []
    registry = AgentRegistry(
        certificate(tmp_path, "scavenger"), lambda: None, speed_told=lambda name, speed: told.append((name, speed))
    )
    port = await registry.open("127.0.0.1", 0)
    options = ("--check-seconds", "60", "--check-memory-mib", "0", "--check-speed-seconds", "0.05")
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", 0.5, *options)
    try:
        await wait_until_async(lambda: told, 60, "what it has measured")
        ((name, speed),) = told
        assert (name, speed.valid) == ("n1", True)
    finally:
        agent.close()
        await registry.close()
