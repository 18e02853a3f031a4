"""Pieces of flattened tensors: what workers with any cuts save, others with any cuts read."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException

from malletrain.client.flat_ranges import FlatLoadPlanner, FlatParts, FlatSavePlanner

SIZE = 24
CUTS = st.sets(st.integers(1, SIZE - 1), max_size=5).map(lambda cuts: [0, *sorted(cuts), SIZE])


def workers(cuts: list[int], whole: torch.Tensor) -> list[FlatParts]:
    """What each worker has, between two cuts."""
    found = []
    for first, end in itertools.pairwise(cuts):
        parts = FlatParts()
        parts.add("weights", whole[first:end], first, SIZE)
        found.append(parts)
    return found


@given(CUTS, CUTS)
def test_a_piece_is_read_once_from_what_overlaps_with_it(saved: list[int], read: list[int]) -> None:
    plans, planners = [], []
    for number, parts in enumerate(workers(saved, torch.arange(float(SIZE)))):
        planners.append(FlatSavePlanner(parts.ranges))
        planners[-1].set_up_planner(parts.tensors, is_coordinator=number == 0)
        plans.append(planners[-1].create_local_plan())
    _, metadata = planners[0].create_global_plan(plans)
    assert metadata.state_dict_metadata["weights"].size == torch.Size([SIZE])
    for parts in workers(read, torch.zeros(SIZE)):
        place = parts.ranges["weights"]
        planner = FlatLoadPlanner(parts.ranges)
        planner.set_up_planner(parts.tensors, metadata)
        filled: list[int] = []
        for item in planner.create_local_plan().items:
            inside = range(item.dest_offsets[0], item.dest_offsets[0] + item.lengths[0])
            # The same number of the whole, there and here.
            assert item.storage_index.offset[0] + item.storage_offsets[0] == place.start + inside[0]
            filled += inside
        assert sorted(filled) == list(range(place.length))


@given(CUTS.filter(lambda cuts: len(cuts) > 3), st.data())
def test_a_checkpoint_without_one_of_the_pieces_is_refused(cuts: list[int], data: st.DataObject) -> None:
    everyone = workers(cuts, torch.zeros(SIZE))
    lost = data.draw(st.integers(0, len(everyone) - 1))
    planners = []
    for parts in everyone[:lost] + everyone[lost + 1 :]:
        planners.append(FlatSavePlanner(parts.ranges))
        planners[-1].set_up_planner(parts.tensors, is_coordinator=not planners[1:])
    with pytest.raises(ValueError, match="Failed to validate global plan"):
        planners[0].create_global_plan([planner.create_local_plan() for planner in planners])


def test_pieces_and_whole_tensors_go_by_files(tmp_path: Path) -> None:
    whole = workers([0, SIZE], torch.arange(float(SIZE)))[0]
    whole.tensors["buffer"] = torch.tensor(7)
    dcp.save(whole.tensors, checkpoint_id=tmp_path, planner=FlatSavePlanner(whole.ranges), no_dist=True)
    target = torch.zeros(SIZE)
    piece = workers([0, 5, 11, SIZE], target)[1]
    piece.tensors["buffer"] = torch.tensor(0)
    dcp.load(piece.tensors, checkpoint_id=tmp_path, planner=FlatLoadPlanner(piece.ranges), no_dist=True)
    assert target.tolist() == [0.0] * 5 + list(range(5, 11)) + [0.0] * (SIZE - 11)
    assert piece.tensors["buffer"].item() == 7


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("other", SIZE, "other: expected it in the checkpoint, got none"),
        ("weights", SIZE + 1, f"weights: expected {SIZE + 1} numbers in the checkpoint, got {SIZE}"),
    ],
)
def test_what_does_not_fit_is_named(name: str, size: int, message: str, tmp_path: Path) -> None:
    whole = workers([0, SIZE], torch.zeros(SIZE))[0]
    dcp.save(whole.tensors, checkpoint_id=tmp_path, planner=FlatSavePlanner(whole.ranges), no_dist=True)
    parts = FlatParts()
    parts.add(name, torch.zeros(3), 2, size)
    with pytest.raises(CheckpointException) as refused:
        dcp.load(parts.tensors, checkpoint_id=tmp_path, planner=FlatLoadPlanner(parts.ranges), no_dist=True)
    assert [str(error) for error, _ in refused.value.failures.values()] == [message]


def test_a_part_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    # torch lets a single worker save less than the whole.
    saved = workers([0, 5, SIZE], torch.zeros(SIZE))[1]
    dcp.save(saved.tensors, checkpoint_id=tmp_path, planner=FlatSavePlanner(saved.ranges), no_dist=True)
    parts = workers([0, 3, 8, SIZE], torch.zeros(SIZE))[1]
    with pytest.raises(CheckpointException) as refused:
        dcp.load(parts.tensors, checkpoint_id=tmp_path, planner=FlatLoadPlanner(parts.ranges), no_dist=True)
    (found,) = (str(error) for error, _ in refused.value.failures.values())
    assert found == "weights: expected 5 numbers from 3 on in the checkpoint, got 3"


def test_a_worker_without_a_part_has_no_piece() -> None:
    parts = FlatParts()
    parts.add("weights", torch.zeros(0), SIZE, SIZE)
    assert parts == FlatParts()
