"""Sizes of a replica's dimensions, and where a worker is among them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from malletrain.client.fsdp import ShardedTraining
from malletrain.client.replicas import ReplicaPlace, replica_mesh, replica_place, replica_sizes

ALL = "of a replica (nodes_per_replica × slots)"


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("workers", "asked", "sizes"),
    [
        (0, {"pipeline": 2, "tensor": 3}, (2, 1, 3)),
        (4, {"pipeline": 2, "tensor": 2}, (2, 1, 2)),
        (4, {"tensor": 4}, (1, 1, 4)),
        (8, {"pipeline": 2, "shard": 2, "tensor": 2}, (2, 2, 2)),
        (2, {"shard": 2}, (1, 2, 1)),
    ],
)
def test_sizes(workers: int, asked: dict[str, int], sizes: tuple[int, int, int]) -> None:
    assert replica_sizes(workers, **asked) == sizes


@pytest.mark.parametrize(
    ("workers", "asked", "error"),
    [
        (0, {"pipeline": 0}, "pipeline: expected at least 1, got 0"),
        (4, {"tensor": -1}, "tensor: expected at least 1, got -1"),
        (4, {"pipeline": 3}, f"pipeline: expected a divisor of 4, of 4 workers {ALL}, got 3"),
        (8, {"pipeline": 2, "tensor": 3}, f"tensor: expected a divisor of 4, of 8 workers {ALL}, got 3"),
        (8, {"pipeline": 2, "shard": 8}, f"shard: expected a divisor of 4, of 8 workers {ALL}, got 8"),
        (8, {"pipeline": 2, "tensor": 2}, f"shard: expected 2, as there are 8 workers {ALL}, got None"),
        (8, {"pipeline": 2, "shard": 2}, f"shard: expected 4, as there are 8 workers {ALL}, got 2"),
    ],
)
def test_sizes_that_are_no_replica(workers: int, asked: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        replica_sizes(workers, **asked)


@pytest.mark.usefixtures("alone")
def test_the_mesh_has_the_dimensions_that_were_asked_for() -> None:
    assert replica_mesh().mesh_dim_names == ("replicate", "shard")
    assert replica_mesh(shard=1).mesh_dim_names == ("replicate", "shard")
    mesh = replica_mesh(tensor=1)
    assert mesh.mesh_dim_names == ("replicate", "pipeline", "shard", "tensor")
    with pytest.raises(ValueError, match="workers_per_replica: expected a divisor of the 1 workers, got 2"):
        replica_mesh(pipeline=2)


@pytest.mark.usefixtures("alone")
def test_a_model_on_the_mesh_has_its_place(model: torch.nn.Module) -> None:
    mesh = replica_mesh(pipeline=1, tensor=1)
    fully_shard(model, mesh=mesh["replicate", "shard"])
    assert replica_place(model, mesh) == ReplicaPlace(1, 0, 1, 0, 1)


@pytest.mark.usefixtures("alone")
def test_a_model_on_another_mesh_is_refused(model: torch.nn.Module) -> None:
    fully_shard(model)
    with pytest.raises(ValueError, match=r"model: expected fully_shard\(part, mesh=mesh\[.replicate., .shard.\]\)"):
        replica_place(model, replica_mesh(pipeline=1))


@pytest.mark.usefixtures("alone")
def test_another_mesh_is_refused(model: torch.nn.Module) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    with pytest.raises(ValueError, match="mesh: expected what replica_mesh has returned, got one with the dimensions"):
        replica_place(model, mesh)


@pytest.mark.usefixtures("alone")
def test_a_model_that_layers_are_divided_in_needs_the_mesh(model: torch.nn.Module) -> None:
    mesh = replica_mesh(tensor=1)
    torch.distributed.tensor.parallel.parallelize_module(
        model, mesh["tensor"], torch.distributed.tensor.parallel.ColwiseParallel()
    )
    fully_shard(model, mesh=mesh["replicate", "shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="mesh: expected what replica_mesh has returned, as weights are divided among"):
        ShardedTraining(model, optimizer, dataset_size=4, batch_per_worker=1)
