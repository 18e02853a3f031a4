"""One worker's part of a training's divided state: copied to the CPU, written by itself, read by any number of workers.

A state of which each part was written by itself, as by survivors of a loss, is a folder `samples-N.parts`. It has one
file for each worker of a generation, or of one of its replicas, whoever wrote it, and no index: it is complete once all
files are there, so that nobody has to wait for others. `PartsReader` shows it to torch.distributed.checkpoint, which
divides it anew.
"""

from __future__ import annotations

import abc
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, LoadPlan, LoadPlanner, StorageReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, WriteItem

from malletrain.client.part_files import FILE, part_path, store_part
from malletrain.client.snapshots import snapshot_of
from malletrain.client.warn_once import describe

Shards = dict[str, Any]
"""Names and tensors, some of them divided among the workers."""

_ALIGNED = 16
"""Tensors begin at multiples of so many bytes, so that a view of any type is possible."""


def align(size: int) -> int:
    """So many bytes, and what is left free after them."""
    return -(-size // _ALIGNED) * _ALIGNED


def view_of(data: torch.Tensor, first: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins at a byte of others' memory, as a view."""
    return data[first : first + shape.numel() * dtype.itemsize].view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class Part:
    """A copy of one worker's part at one moment.

    Attributes:
        header: What it is: `samples`, `rank`, `workers`, `plain` (what is not divided), `random_state`; `values` (by
            name, pickled), and `tensors` (name, offsets in the whole, shape of the whole, own shape, type, first byte).
        data: Bytes of all tensors, one after the other.
    """

    header: dict[str, Any]
    data: torch.Tensor

    @property
    def samples(self) -> int:
        """The job's sample counter."""
        return int(self.header["samples"])

    @property
    def rank(self) -> int:
        """Which part it is, from 0: its worker's rank, or that worker's number within its replica."""
        return int(self.header["rank"])

    def tensor(self, entry: tuple[Any, ...]) -> torch.Tensor:
        """A tensor of `header["tensors"]`, as a view."""
        _, _, _, shape, dtype, first = entry
        return view_of(self.data, first, torch.Size(shape), dtype)


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """One worker's part that has not been copied yet.

    Attributes:
        header: As that of a `Part`.
        size: Bytes of all its tensors.
        tensors: The tensors themselves, in the order of `header["tensors"]`.
    """

    header: dict[str, Any]
    size: int
    tensors: tuple[torch.Tensor, ...]

    def copy_to(self, data: torch.Tensor) -> Part:
        """Copy it.

        Args:
            data: `size` bytes on the CPU.
        """
        part = Part(self.header, data)
        for entry, tensor in zip(self.header["tensors"], self.tensors, strict=True):
            part.tensor(entry).copy_(tensor)
        return part


def prepared_part(
    shards: Shards, plain: Mapping[str, Any], random_state: Any, *, samples: int, rank: int, workers: int
) -> PreparedPart:
    """What is to be copied of this worker's part.

    Args:
        shards: What is divided.
        plain: What is not.
        random_state: This worker's random number generators.
        samples: The job's sample counter.
        rank: This worker's rank.
        workers: Number of workers.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner(shards, is_coordinator=True)
    tensors: list[torch.Tensor] = []
    entries: list[tuple[Any, ...]] = []
    values: dict[str, torch.Tensor] = {}
    end = 0
    for item in planner.create_local_plan().items:
        data = planner.resolve_data(item)
        if isinstance(data, torch.Tensor):
            tensors.append(data)
            entries.append(_entry(item, data, end))
            end += align(data.numel() * data.element_size())
        else:
            values[item.index.fqn] = torch.frombuffer(bytearray(data.getbuffer()), dtype=torch.uint8)
    header = {
        "samples": samples,
        "rank": rank,
        "workers": workers,
        "plain": snapshot_of(dict(plain), "checkpoint"),
        "random_state": snapshot_of(random_state, "checkpoint"),
        "values": values,
        "tensors": entries,
    }
    return PreparedPart(header, end, tuple(tensors))


def part_of(
    shards: Shards, plain: Mapping[str, Any], random_state: Any, *, samples: int, rank: int, workers: int
) -> Part:
    """Copy this worker's part to the CPU; arguments as for `prepared_part`."""
    own = prepared_part(shards, plain, random_state, samples=samples, rank=rank, workers=workers)
    return own.copy_to(torch.empty(own.size, dtype=torch.uint8))


def _entry(item: WriteItem, tensor: torch.Tensor, first: int) -> tuple[Any, ...]:
    assert item.tensor_data is not None
    offsets = item.tensor_data.chunk.offsets
    return (item.index.fqn, tuple(offsets), tuple(item.tensor_data.size), tuple(tensor.shape), tensor.dtype, first)


def pack_header(header: Mapping[str, Any]) -> torch.Tensor:
    """A header as bytes, to be sent."""
    stream = io.BytesIO()
    torch.save(header, stream)
    return torch.frombuffer(bytearray(stream.getbuffer()), dtype=torch.uint8)


def unpack_header(packet: torch.Tensor) -> dict[str, Any]:
    """The header that `pack_header` made bytes of."""
    header: dict[str, Any] = torch.load(io.BytesIO(packet.numpy().tobytes()), weights_only=True)
    return header


def write_part(folder: Path, token: str, part: Part) -> None:
    """Write a part; its file is there once it is complete.

    Raises:
        OSError: it can't be written.
    """
    path = part_path(folder, token, part.rank, part.header["workers"])
    store_part(path, lambda file: write_content(part, file))


def write_content(part: Part, file: BinaryIO) -> None:
    """Write what the file of a part has in it.

    Raises:
        OSError: it can't be written.
        RuntimeError: the same, from torch.
    """
    torch.save({"header": part.header, "data": part.data}, file)


def complete_parts(folder: Path) -> list[Path]:
    """The files of a state by rank; none if one of them is missing."""
    by_generation: dict[tuple[str, int], dict[int, Path]] = {}
    for path in folder.iterdir():
        if (match := FILE.fullmatch(path.name)) is not None:
            by_generation.setdefault((match[1], int(match[3])), {})[int(match[2])] = path
    for (_, workers), paths in sorted(by_generation.items(), key=lambda entry: entry[0]):
        if len(paths) == workers:
            return [paths[rank] for rank in range(workers)]
    return []


def read_plain(folder: Path) -> dict[str, Any]:
    """What a complete state has that is not divided, with the random states of all workers.

    Raises:
        OSError: it can't be read.
    """
    headers = [_read(path).header for path in complete_parts(folder)]
    plain: dict[str, Any] = headers[0]["plain"]
    return {**plain, "random_states": [header["random_state"] for header in headers]}


def _read(path: Path) -> Part:
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return Part(content["header"], content["data"])


class HeadersReader(StorageReader):  # type: ignore[misc]  # torch is not typed here
    """Tells torch.distributed.checkpoint what is in the parts of a complete state; reading is left to others.

    Attributes:
        places: For each piece of a tensor, in which part it is, and its entry of that part's `header["tensors"]`.
        values: What is no tensor, by name, pickled.
    """

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.places: dict[MetadataIndex, tuple[int, tuple[Any, ...]]] = {}
        self.values: dict[str, torch.Tensor] = {}

    @abc.abstractmethod
    def headers(self) -> Sequence[Mapping[str, Any]]:
        """The headers of all parts, by rank."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this is a folder."""
        return Path(checkpoint_id).is_dir()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin to read; the folder is always that of the constructor."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Which tensors there are, and which part of each is where."""
        del args, kwargs
        described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for rank, header in enumerate(self.headers()):
            for name, value in header["values"].items():
                described[name] = BytesStorageMetadata()
                self.values[name] = value
            for entry in header["tensors"]:
                self._add(rank, entry, described)
        return Metadata(state_dict_metadata=dict(described), storage_data={})

    def _add(self, rank: int, entry: tuple[Any, ...], described: dict[str, Any]) -> None:
        name, offsets, whole, shape, dtype, _ = entry
        known = described.setdefault(name, TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(whole), []))
        index = MetadataIndex(name, offsets)
        # What is not divided is in every part; a worker may have none of the rows.
        if index not in self.places and 0 not in shape:
            known.chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(shape)))
            self.places[index] = rank, entry

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to do after `read_metadata`."""
        del args, kwargs

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def load_value(self, planner: LoadPlanner, item: ReadItem) -> None:
        """Fill what is no tensor."""
        planner.load_bytes(item, io.BytesIO(self.values[item.storage_index.fqn].numpy().tobytes()))

    def fill(self, planner: LoadPlanner, item: ReadItem, source: torch.Tensor) -> None:
        """Fill a tensor, or the part of it that an item means, with the same part of what was saved."""
        target = planner.resolve_tensor(item).detach()
        target.copy_(source)
        planner.commit_tensor(item, target)


def load_from(reader: StorageReader, shards: Shards, what: str, planner: LoadPlanner | None = None) -> None:
    """Fill tensors, however they are divided now, with what a reader has; all workers call it.

    Args:
        reader: What reads.
        shards: The tensors.
        what: What is read, for errors.
        planner: Says where they lie in the whole; None: they say it themselves.

    Raises:
        RuntimeError: a tensor is missing or has another shape; or something can't be read.
    """
    try:
        dcp.load(shards, storage_reader=reader, planner=planner)
    except CheckpointException as error:
        # It is no Exception, and has the errors of all workers, each with its traceback.
        rank, (cause, _) = next(iter(error.failures.items()))
        raise RuntimeError(f"{what}, rank {rank}: {describe(cause)}") from error


def narrow_to_item(tensor: torch.Tensor, item: ReadItem) -> torch.Tensor:
    """The part of a saved piece that an item means, as a view."""
    for dimension, (first, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dimension, first, length)
    return tensor


def completed_future() -> torch.futures.Future[None]:
    """What a reader returns that has read all."""
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    return future


class PartsReader(HeadersReader):
    """Reads a complete state for torch.distributed.checkpoint. Of each file, only what is needed is read."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        super().__init__()
        self._folder = folder
        self._parts: list[Part] = []

    def headers(self) -> Sequence[Mapping[str, Any]]:
        """Those of the files."""
        self._parts = [_read(path) for path in complete_parts(self._folder)]
        return [part.header for part in self._parts]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill what the plan asks for."""
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self.load_value(planner, item)
            else:
                rank, entry = self.places[item.storage_index]
                self.fill(planner, item, narrow_to_item(self._parts[rank].tensor(entry), item))
        return completed_future()
