"""Parts of flattened tensors for torch.distributed.checkpoint: any range of the numbers, saved and read by anyone.

A DTensor divides a tensor evenly along a dimension. Others, as ZeRO, put all parameters into one row of numbers, cut it
into equal pieces, and so cut parameters anywhere. Here a worker's piece of a parameter is a one-dimensional tensor,
with its place in the flattened parameter. A checkpoint has all pieces, and says of each where it lies. Another number
of workers, with other cuts, reads the pieces that overlap with its own. Nothing is converted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, LoadPlan, SavePlan
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan, create_default_local_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


@dataclass(frozen=True, slots=True)
class FlatRange:
    """Where a piece lies.

    Attributes:
        start: Its first number in the flattened tensor.
        length: How many numbers it has, at least 1.
        whole: How many numbers the whole tensor has.
    """

    start: int
    length: int
    whole: int

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The same, as torch.distributed.checkpoint has it."""
        return ChunkStorageMetadata(torch.Size([self.start]), torch.Size([self.length]))


@dataclass(frozen=True, slots=True)
class FlatParts:
    """What one worker has of a divided state.

    Attributes:
        tensors: Tensors by name.
        ranges: Of those that are pieces: where they lie. The other tensors are whole.
    """

    tensors: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    ranges: dict[str, FlatRange] = dataclasses.field(default_factory=dict)

    def add(self, name: str, piece: torch.Tensor, start: int, whole: int) -> None:
        """Add a piece; one without numbers is left out.

        Args:
            name: The name of the whole tensor.
            piece: Its numbers, in one dimension. They are filled in place.
            start: Its first number in the flattened tensor.
            whole: How many numbers the whole tensor has.
        """
        if piece.numel():
            self.tensors[name] = piece
            self.ranges[name] = FlatRange(start, piece.numel(), whole)


class FlatSavePlanner(DefaultSavePlanner):  # type: ignore[misc]  # torch is not typed here
    """Writes pieces as parts of their whole, and other tensors as they are."""

    def __init__(self, ranges: Mapping[str, FlatRange]) -> None:
        """Nothing is planned yet.

        Args:
            ranges: Where the pieces lie, by name.
        """
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._ranges = ranges

    def create_local_plan(self) -> SavePlan:
        """What this worker could write."""
        whole = {name: value for name, value in self.state_dict.items() if name not in self._ranges}
        plan = create_default_local_save_plan(whole, self.is_coordinator)
        pieces = [_write_item(name, self.state_dict[name], place) for name, place in self._ranges.items()]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *pieces])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The tensor to be written."""
        return self.state_dict[index.fqn] if index.fqn in self._ranges else super().lookup_object(index)


class FlatLoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]  # torch is not typed here
    """Fills pieces with what overlaps with them, and other tensors as they are."""

    def __init__(self, ranges: Mapping[str, FlatRange]) -> None:
        """Nothing is planned yet.

        Args:
            ranges: Where the pieces lie, by name.
        """
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._ranges = ranges

    def create_local_plan(self) -> LoadPlan:
        """What this worker reads.

        Raises:
            RuntimeError: the checkpoint lacks a tensor or a part of it, or has it in another size.
        """
        whole = {name: value for name, value in self.state_dict.items() if name not in self._ranges}
        plan = create_default_local_load_plan(whole, self.metadata)
        saved = self.metadata.state_dict_metadata
        pieces = [item for name, place in self._ranges.items() for item in _read_items(name, place, saved.get(name))]
        return dataclasses.replace(plan, items=[*plan.items, *pieces])

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The tensor to be filled."""
        return self.state_dict[index.fqn] if index.fqn in self._ranges else super().lookup_tensor(index)


def _write_item(name: str, piece: torch.Tensor, place: FlatRange) -> WriteItem:
    whole = TensorWriteData(
        chunk=place.chunk, properties=TensorProperties.create_from_tensor(piece), size=torch.Size([place.whole])
    )
    return WriteItem(index=MetadataIndex(name, place.chunk.offsets), type=WriteItemType.SHARD, tensor_data=whole)


def _read_items(name: str, place: FlatRange, saved: Any) -> list[ReadItem]:
    if not isinstance(saved, TensorStorageMetadata):
        raise RuntimeError(f"{name}: expected it in the checkpoint, got none")
    if saved.size != torch.Size([place.whole]):
        raise RuntimeError(f"{name}: expected {place.whole} numbers in the checkpoint, got {saved.size.numel()}")
    items: list[ReadItem] = create_read_items_for_chunk_list(name, saved, [place.chunk])
    length = sum(item.lengths[0] for item in items)
    if length != place.length:
        raise RuntimeError(
            f"{name}: expected {place.length} numbers from {place.start} on in the checkpoint, got {length}"
        )
    return items
