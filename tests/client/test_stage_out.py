"""What workers leave in memory for the agents of nodes that are given back, and when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed as dist

from malletrain.client import node_memory
from malletrain.client.checkpoint_manager import CheckpointManager
from malletrain.client.handover import Handover, leave_whole
from malletrain.client.node_memory import NodeMemory, open_node_memory
from malletrain.client.sharded_checkpoints import ShardedCheckpoints
from malletrain.client.staged_parts import StageOutOffer, stagers_of
from malletrain.common import environment as env
from malletrain.common.handover_memory import HandoverMemories, LeaveNotice, write_leave_notice
from malletrain.common.stage_out import StagedCheckpoint, StageOutTerms, read_staged

TERMS = StageOutTerms(60.0, 1 << 20)
STAGED = StagedCheckpoint(7, 120)


@pytest.fixture
def memories() -> Iterator[HandoverMemories]:
    memories = HandoverMemories()
    yield memories
    memories.close()


@pytest.fixture
def descriptor(memories: HandoverMemories) -> int:
    return memories.of("n1", 0)


@pytest.fixture
def memory(descriptor: int, tmp_path: Path) -> NodeMemory:
    return NodeMemory(descriptor, tmp_path, "n1", 7, TERMS)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def marks(job: Path) -> list[str]:
    folder = job / "stage-out"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_checkpoint_is_left_with_its_mark_and_taken_back(memory: NodeMemory, descriptor: int, tmp_path: Path) -> None:
    memory.stage(STAGED, lambda file: file.write(b"weights"))
    assert read_staged(descriptor) == STAGED
    assert os.pread(descriptor, 7, 0) == b"weights"
    assert marks(tmp_path) == ["120-0"]
    assert memory.read() is None, "it is no state that is handed over"
    memory.unstage(STAGED)
    assert read_staged(descriptor) is None
    assert not marks(tmp_path)


def test_what_is_larger_than_the_agent_copies_is_not_left(memory: NodeMemory, descriptor: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the agent copies"):
        memory.stage(STAGED, lambda file: file.write(bytes(TERMS.max_bytes + 1)))
    assert os.fstat(descriptor).st_size == 0
    assert not marks(tmp_path)


def test_what_can_t_be_written_is_not_left(memory: NodeMemory, descriptor: int, tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no state")

    with pytest.raises(RuntimeError, match="no state"):
        memory.stage(STAGED, fail)
    assert os.fstat(descriptor).st_size == 0
    assert not marks(tmp_path)


def test_where_memory_is_short_nothing_is_written(memory: NodeMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_memory, "available_memory", lambda: 5)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        memory.stage(STAGED, lambda _: pytest.fail("it is not written"))


def test_where_no_mark_can_be_left_nobody_would_wait(memory: NodeMemory, descriptor: int, tmp_path: Path) -> None:
    (tmp_path / "stage-out").write_text("no folder")
    with pytest.raises(OSError, match="exists"):
        memory.stage(STAGED, lambda file: file.write(b"weights"))
    assert os.fstat(descriptor).st_size == 0


def test_agents_that_offer_nothing_are_left_nothing(descriptor: int, tmp_path: Path) -> None:
    environ = {
        env.HANDOVER_MEMORY: f"{descriptor}",
        env.LINEAGE: "7",
        env.JOB_DIR: str(tmp_path),
        env.NODE: "n1",
    }
    without = open_node_memory(environ)
    offered = open_node_memory({**environ, env.STAGE_OUT: TERMS.to_text()})
    assert without is not None
    assert offered is not None
    own = tmp_path / "checkpoints"
    assert without.terms_for(own) is None
    assert offered.terms_for(own) == TERMS
    assert offered.terms_for(tmp_path / "elsewhere") is None, "the agent copies to the job's own folder only"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("released", "wanted", "expected"),
    [
        ({"n1": 2.0}, True, Handover.STAGE_OUT),
        ({"n1": 2.0}, False, Handover.BY_DISK),
        ({}, True, Handover.BY_DISK),  # the node stays: there is time
    ],
)
def test_rank_0_stages_out_where_no_other_node_stays(
    memory: NodeMemory, tmp_path: Path, released: dict[str, float], wanted: bool, expected: Handover
) -> None:
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset(), released))
    assert leave_whole(memory, 120, lambda _: {}, [], in_memory=True, stages_out=wanted) is expected


def test_the_size_and_the_time_of_the_last_save_count(tmp_path: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # so that a save takes several seconds
        return now[0]

    left = [2.0]
    saving = CheckpointManager(tmp_path, 30.0, clock, seconds_left=lambda: left[0])
    saving.save(12, lambda: {"model": torch.zeros(1000), "optimizer": {}, "samples": 12}, last=True)
    costs = saving.costs()
    seconds, size = costs["checkpoint_background_seconds"], int(costs["checkpoint_bytes"])
    assert seconds >= 1
    short = StageOutTerms(60.0, 1 << 20)
    for left[0], better in ((seconds / 2, True), (seconds * 2, False)):
        assert saving.is_better_staged_out(1, short) is better
    left[0] = seconds / 2
    assert not saving.is_better_staged_out(1, StageOutTerms(60.0, size - 1)), "the agent copies less"
    assert not saving.is_better_staged_out(1, StageOutTerms(seconds * 0.9, 1 << 20)), "the agent has no time for it"


@pytest.mark.parametrize(("size", "left", "better"), [(10**9, 2.0, True), (10**9, 12.0, False), (10**8, 2.0, False)])
def test_before_the_first_save_100_megabytes_a_second_are_assumed(
    tmp_path: Path, size: int, left: float, better: bool
) -> None:
    terms = StageOutTerms(60.0, 1 << 40)
    sharded = ShardedCheckpoints(tmp_path, 30.0, seconds_left=lambda: left)
    assert sharded.is_better_staged_out(lambda: size, terms) is better
    whole = CheckpointManager(tmp_path, 30.0, lambda: 0.0, seconds_left=lambda: left)
    assert whole.is_better_staged_out(size, terms) is better


def offer(node: str, shard: int, size: int = 10, most: int = 100) -> StageOutOffer:
    return StageOutOffer(node, shard, size, most)


def test_each_part_is_left_once_and_only_if_all_are() -> None:
    both = {"n1", "n2"}
    assert stagers_of([offer("n1", 0), offer("n2", 1)], 2, both) == {0: 0, 1: 1}
    replicas = [offer("n1", 0), offer("n1", 1), offer("n2", 0), offer("n2", 1)]
    assert stagers_of(replicas, 2, both) == {0: 0, 1: 1}
    assert stagers_of([offer("n1", 0), offer("n2", 1)], 2, {"n1"}) is None, "n2 stays"
    assert stagers_of([offer("n1", 0), offer("", 1)], 2, both) is None, "one has no memory"
    assert stagers_of([offer("n1", 0), offer("n2", 1, most=0)], 2, both) is None, "an agent offers nothing"
    assert stagers_of([offer("n1", 0), offer("n2", 1)], 3, both) is None, "a part is missing"
    assert stagers_of([offer("n1", 0, 60), offer("n1", 1, 60)], 2, both) is None, "together they are too much"
    assert stagers_of([offer("n1", 0, 60), offer("n2", 1, 60)], 2, both) == {0: 0, 1: 1}
