"""What workers leave in memory for the next ones: the memory itself, and who keeps which part."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client import distributed, node_memory
from malletrain.client.handover import Handover, StateMoment, leave_whole, take_whole
from malletrain.client.job_context import JobContext, released_seconds
from malletrain.client.node_memory import NodeMemory, open_node_memory
from malletrain.client.peer_shards import LeftParts, Offer, owners_of, ways_of
from malletrain.common import environment as env
from malletrain.common.handover_memory import HandoverMemories, LeaveNotice, read_leave_notice, write_leave_notice
from malletrain.common.job_folder import LEAVE_FILE


@pytest.fixture
def memories() -> Iterator[HandoverMemories]:
    memories = HandoverMemories()
    yield memories
    memories.close()


@pytest.fixture
def descriptor(memories: HandoverMemories) -> int:
    """The file in memory that belongs to the place of `memory`."""
    return memories.of("n1", 0)


@pytest.fixture
def memory(descriptor: int, tmp_path: Path) -> NodeMemory:
    return NodeMemory(descriptor, tmp_path, "n1", 7)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def bytes_in(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def test_each_place_has_a_memory_of_its_own_until_its_node_leaves(memories: HandoverMemories) -> None:
    first, second, other = memories.of("n1", 0), memories.of("n1", 1), memories.of("n2", 0)
    assert len({first, second, other}) == 3
    assert memories.of("n1", 0) == first
    memories.close(["n1"])
    for descriptor in (first, second):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert os.fstat(other).st_size == 0


def test_programs_that_are_started_meanwhile_do_not_get_it(memories: HandoverMemories) -> None:
    assert not os.get_inheritable(memories.of("n1", 0))


def test_what_is_left_is_read_by_the_next_worker(memory: NodeMemory, tmp_path: Path, descriptor: int) -> None:
    assert memory.read() is None
    memory.begin(8).copy_(torch.arange(8, dtype=torch.uint8))
    assert memory.read() is None, "it does not count before all of it is there"
    memory.finish(120, {"a": [1, 2]}, 8)
    left = NodeMemory(descriptor, tmp_path, "n1", 8).read()
    assert left is not None
    assert (left.generation, left.samples, left.description, left.data.tolist()) == (7, 120, {"a": [1, 2]}, [*range(8)])
    del left
    memory.clear()
    assert memory.read() is None
    assert bytes_in(descriptor) == 0


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_what_is_cut_does_not_count(memory: NodeMemory, cut: int, descriptor: int) -> None:
    memory.begin(64).fill_(1)
    memory.finish(5, {"a": 1}, 64)
    os.truncate(descriptor, bytes_in(descriptor) - cut)
    assert memory.read() is None


def test_what_does_not_fit_is_refused_before_a_byte_is_taken(
    memory: NodeMemory, monkeypatch: pytest.MonkeyPatch, descriptor: int
) -> None:
    monkeypatch.setattr(node_memory, "available_memory", lambda: 1000)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        memory.begin(1000)
    assert bytes_in(descriptor) == 0


def test_a_worker_finds_the_memory_that_it_was_given(memories: HandoverMemories, tmp_path: Path) -> None:
    descriptor = memories.of("n1", 0)
    given_it = {
        env.HANDOVER_MEMORY: str(descriptor),
        env.LINEAGE: "3",
        env.JOB_DIR: str(tmp_path),
        env.NODE: "n1",
    }
    opened = open_node_memory(given_it)
    assert opened is not None
    assert (opened.node, opened.generation) == ("n1", 3)
    for name in given_it:
        assert open_node_memory({key: value for key, value in given_it.items() if key != name}) is None
    with (tmp_path / "other").open("w") as other:
        # A program between may have closed it, and have opened something else.
        assert open_node_memory({**given_it, env.HANDOVER_MEMORY: str(other.fileno())}) is None
    assert open_node_memory({**given_it, env.HANDOVER_MEMORY: "99999"}) is None


def test_only_the_generation_that_is_meant_is_told_where_others_follow(tmp_path: Path) -> None:
    assert read_leave_notice(tmp_path, 2).staying == frozenset()
    write_leave_notice(tmp_path, LeaveNotice(2, frozenset({"n1", "n2#3"})))
    assert read_leave_notice(tmp_path, 2).staying == {"n1", "n2#3"}
    assert read_leave_notice(tmp_path, 3).staying == frozenset()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"generation": "2", "staying": ["a"]}', b'{"generation": 2, "staying": 1}']
)
def test_what_makes_no_sense_names_no_host(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LEAVE_FILE).write_bytes(content)
    assert read_leave_notice(tmp_path, 2).staying == frozenset()


def test_where_it_can_not_be_told_nothing_of_before_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from malletrain.common import handover_memory

    write_leave_notice(tmp_path, LeaveNotice(2, frozenset({"n1"})))

    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(handover_memory, "write_atomically", full)
    write_leave_notice(tmp_path, LeaveNotice(2, frozenset()))
    assert read_leave_notice(tmp_path, 2).staying == frozenset()


def content(states: list[object]) -> dict[str, object]:
    weight = torch.arange(6.0).reshape(2, 3)
    return {"weight": weight, "tied": weight, "half": torch.ones(3, dtype=torch.bfloat16), "states": states, "n": 3}


@pytest.mark.usefixtures("alone")
def test_a_whole_state_is_the_same_afterwards_and_free_of_the_memory(
    memory: NodeMemory, tmp_path: Path, descriptor: int
) -> None:
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset({"n1"})))
    assert leave_whole(memory, 120, content, ["random"]) is Handover.DONE
    taken = take_whole(memory, 100, lambda *_: pytest.fail("nobody lacks it"))
    assert taken is not None
    assert bytes_in(descriptor) == 0, "what was taken is no view of it"
    assert torch.equal(taken["weight"], torch.arange(6.0).reshape(2, 3))
    assert taken["half"].dtype == torch.bfloat16
    assert (taken["states"], taken["n"]) == (["random"], 3)


@pytest.mark.usefixtures("alone")
def test_a_newer_checkpoint_counts(memory: NodeMemory, tmp_path: Path, descriptor: int) -> None:
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset({"n1"})))
    assert leave_whole(memory, 120, content, ["random"]) is Handover.DONE
    assert take_whole(memory, 121, lambda own, _: own) is None
    assert bytes_in(descriptor) == 0


@pytest.mark.usefixtures("alone")
def test_on_a_node_that_leaves_nothing_is_left(memory: NodeMemory, tmp_path: Path, descriptor: int) -> None:
    assert leave_whole(memory, 120, content, ["random"]) is Handover.BY_DISK, "nobody has said who stays"
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset({"n2"})))
    assert leave_whole(memory, 120, content, ["random"]) is Handover.BY_DISK
    assert bytes_in(descriptor) == 0


@pytest.mark.usefixtures("alone")
def test_a_node_that_is_wanted_back_meanwhile_does_not_count(
    memory: NodeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptor: int
) -> None:
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset({"n1"})))
    finish = memory.finish

    def finish_late(samples: int, description: Mapping[str, Any], size: int) -> None:
        finish(samples, description, size)
        write_leave_notice(tmp_path, LeaveNotice(7, frozenset()))

    monkeypatch.setattr(memory, "finish", finish_late)
    assert leave_whole(memory, 120, content, ["random"]) is Handover.SAVE_ALONE
    assert bytes_in(descriptor) == 0


@pytest.mark.usefixtures("alone")
def test_the_only_worker_saves_itself_on_a_node_that_is_given_back(memory: NodeMemory, tmp_path: Path) -> None:
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset({"n1"}), {"n1": 5.0}))
    assert leave_whole(memory, 120, content, ["random"], in_memory=False) is Handover.BY_DISK


@pytest.mark.parametrize(("node", "all_nodes", "seconds"), [("n1", False, 5.0), ("n2", False, None), ("n2", True, 2.5)])
def test_a_worker_knows_how_long_its_node_stays(
    tmp_path: Path, node: str, all_nodes: bool, seconds: float | None
) -> None:
    write_leave_notice(tmp_path, LeaveNotice(7, frozenset(), {"n1": 5.0, "n3#1": 2.5}))
    job = JobContext("j1", tmp_path, tmp_path / "checkpoints", "127.0.0.1:9", node, 1, 0, lineage="12:34/7")
    assert released_seconds(job, all_nodes=all_nodes) == seconds
    assert released_seconds(replace(job, lineage="12:34/8"), all_nodes=all_nodes) is None
    assert released_seconds(replace(job, lineage=""), all_nodes=all_nodes) is None


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("beside_release_0_1", [False, True])
def test_workers_of_release_0_1_are_not_asked_what_they_were_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, beside_release_0_1: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(distributed, "take_whole", lambda _, on_disk, __: asked.append(on_disk))
    monkeypatch.setenv(env.JOB_ID, "j1")
    monkeypatch.setenv(env.JOB_DIR, str(tmp_path))
    monkeypatch.setenv(env.MONITOR, "127.0.0.1:9")
    monkeypatch.setenv(env.SUPERVISOR, "12:34")
    if not beside_release_0_1:
        monkeypatch.setenv(env.LINEAGE, "7")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    distributed.ElasticTraining(model, optimizer, dataset_size=8, batch_per_worker=2)
    assert asked == ([] if beside_release_0_1 else [-1])


NODES = st.sampled_from(["", "n1", "n2", "n3", "n4"])


@st.composite
def offers(draw: st.DrawFn) -> list[Offer]:
    shards, replicas = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(0, 40), min_size=shards, max_size=shards))
    rooms = {node: draw(st.none() | st.integers(0, 150)) for node in ("", "n1", "n2", "n3", "n4")}
    made = []
    for _ in range(replicas):
        for shard in range(shards):
            node = draw(NODES)
            made.append(Offer(node, shard, shards, sizes[shard], 1, rooms[node], None))
    return made


@given(offers(), st.sets(st.sampled_from(["n1", "n2", "n3", "n4"])))
def test_every_part_is_kept_where_others_follow_and_there_is_room(made: list[Offer], staying: set[str]) -> None:
    ways = ways_of(made, staying)
    holders = [offer for offer in made if offer.node in staying]
    if ways is None:
        # With room for everything on one node that stays, there is a way.
        total = sum({offer.shard: offer.size for offer in made}.values())
        assert not any(offer.room is None or offer.room >= 2 * total for offer in holders)
        return
    assert sorted(ways) == list(range(made[0].shards))
    used: Counter[str] = Counter()
    for shard, way in ways.items():
        assert made[way.owner].shard == shard
        assert made[way.holder].node in staying
        used[made[way.holder].node] += made[way.owner].size
        could_stay = any(offer.shard == shard and offer.node in staying and offer.room is None for offer in made)
        assert way.owner == way.holder or not could_stay, "it travels although it need not"
    for offer in holders:
        assert offer.room is None or used[offer.node] <= offer.room


def test_parts_that_travel_are_spread() -> None:
    made = [Offer(node, shard, 4, 10, 1, 100, None) for shard, node in enumerate(["n1", "n2", "n3", "n4"])]
    ways = ways_of(made, {"n3", "n4"})
    assert ways is not None
    assert {shard: way.holder for shard, way in ways.items()} == {0: 2, 1: 3, 2: 2, 3: 3}


def test_the_newest_complete_state_counts_unless_the_disk_has_a_newer_one() -> None:
    old, new = StateMoment(100, 1), StateMoment(120, 2)
    table = [LeftParts(new, 2, (0,)), LeftParts(old, 2, (0, 1)), None]
    assert owners_of(table, 90) == {0: 1, 1: 1}
    assert owners_of([*table, LeftParts(new, 2, (1, 0))], 90) == {0: 0, 1: 3}
    assert owners_of(table, 101) == {}
    assert owners_of([None, None], -1) == {}
