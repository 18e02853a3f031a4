"""Models that are divided within a replica and repeated across replicas, with a line more than torch itself needs.

Divided by FSDP2 alone (HSDP):

```python
init()
mesh = replica_mesh()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
training = ShardedTraining(model, optimizer, ...)
```

Divided by layers (pipeline) and within layers (tensor), where workers of a replica share its samples:

```python
mesh = replica_mesh(pipeline=2, tensor=2)
parallelize_module(stage, mesh["tensor"], plan)
fully_shard(stage, mesh=mesh["replicate", "shard"])
training = ShardedTraining(stage, optimizer, mesh=mesh, ...)
```

`malletrain submit --nodes-per-replica 2` says how many nodes one copy of the model is divided among. The job's scale is
whole replicas then, the nodes of a replica follow each other in rank order, and a lost node costs no step as long as
one replica is whole.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from malletrain.client.job_context import read_workers_per_replica

REPLICATE, PIPELINE, SHARD, TENSOR = "replicate", "pipeline", "shard", "tensor"
"""Names of the mesh's dimensions, the outer one first. Workers that exchange most have neighbouring ranks."""
_WITHIN = "workers of a replica (nodes_per_replica × slots)"


def replica_mesh(
    workers_per_replica: int | None = None,
    device_type: str | None = None,
    *,
    pipeline: int | None = None,
    shard: int | None = None,
    tensor: int | None = None,
) -> DeviceMesh:
    """The mesh of this scale; all workers call it after `init`.

    Args:
        workers_per_replica: Workers that one copy of the model is divided among. None: those of as many nodes as the
            job was submitted with (`--nodes-per-replica`). Where it says nothing, and outside MalleTrain: as many as
            `pipeline`, `shard` and `tensor` need; all workers without these.
        device_type: Where the model is, `cuda` or `cpu`; None: on GPUs where torch can use some.
        pipeline: Stages that the layers of a copy are divided into. None: 1.
        shard: Workers that `fully_shard` divides weights among, each with samples of its own. None: 1 with `pipeline`
            or `tensor`, else all workers of a replica.
        tensor: Workers that each layer is divided among. None: 1.

    Returns:
        A mesh with the dimensions `replicate` and `shard`, for `fully_shard`. With `pipeline` or `tensor` it has
        `replicate`, `pipeline`, `shard` and `tensor`, and `mesh["replicate", "shard"]` is for `fully_shard`.

    Raises:
        ValueError: the workers are no whole number of replicas; or an argument does not fit a replica's workers.
    """
    workers = dist.get_world_size()
    said = workers_per_replica or read_workers_per_replica(os.environ)
    kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    if pipeline is None and shard is None and tensor is None:
        each = said or workers
        return init_device_mesh(kind, (_replicas(workers, each), each), mesh_dim_names=(REPLICATE, SHARD))
    sizes = replica_sizes(said, pipeline=pipeline, shard=shard, tensor=tensor)
    replicas = _replicas(workers, math.prod(sizes))
    if pipeline is None and tensor is None:
        return init_device_mesh(kind, (replicas, math.prod(sizes)), mesh_dim_names=(REPLICATE, SHARD))
    return init_device_mesh(kind, (replicas, *sizes), mesh_dim_names=(REPLICATE, PIPELINE, SHARD, TENSOR))


def _replicas(workers: int, each: int) -> int:
    if each < 1 or workers % each:
        raise ValueError(f"workers_per_replica: expected a divisor of the {workers} workers, got {each}")
    return workers // each


def replica_sizes(
    workers_per_replica: int, *, pipeline: int | None = None, shard: int | None = None, tensor: int | None = None
) -> tuple[int, int, int]:
    """Sizes of a replica's dimensions, those that are not given being 1: pipeline, shard, tensor.

    Args:
        workers_per_replica: Workers of a replica; 0: as many as these need.
        pipeline: As for `replica_mesh`.
        shard: As for `replica_mesh`.
        tensor: As for `replica_mesh`.

    Raises:
        ValueError: an argument is below 1, or together they are not the workers of a replica.
    """
    given = {PIPELINE: pipeline, SHARD: shard, TENSOR: tensor}
    left = workers_per_replica
    # Shards last: they are what can take up the rest.
    for name in (PIPELINE, TENSOR, SHARD):
        size = given[name]
        if size is not None and size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
        if left and left % (size or 1):
            raise ValueError(f"{name}: expected a divisor of {left}, of {workers_per_replica} {_WITHIN}, got {size}")
        left //= size or 1
    if left > 1:
        wanted = left * (shard or 1)
        raise ValueError(f"shard: expected {wanted}, as there are {workers_per_replica} {_WITHIN}, got {shard}")
    return pipeline or 1, shard or 1, tensor or 1


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a worker is in the mesh of a model.

    Attributes:
        replicas: Copies of the model.
        shard: Which part of its copy the worker has, from 0.
        shards: Parts of a copy.
        batch_part: Which part of each global batch it trains with, from 0. Workers of a replica that have different
            layers, or parts of the same layer, share it.
        batch_parts: Parts of a global batch.
        apart: Whether a step needs all workers of a replica at different moments, as with pipeline or tensor: some may
            be done with their gradients while others are not.
        staged: Whether a worker has some of the layers only.
    """

    replicas: int
    shard: int
    shards: int
    batch_part: int
    batch_parts: int
    apart: bool = False
    staged: bool = False


def replica_place(model: torch.nn.Module, mesh: DeviceMesh | None = None) -> ReplicaPlace:
    """Where this worker is.

    Args:
        model: The model, after `fully_shard`.
        mesh: What `replica_mesh` has returned; None: as the model's parameters say, which know nothing of stages.

    Raises:
        ValueError: the mesh is none of `replica_mesh`, or it is missing, or the model is not on it.
    """
    divided = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    rank, workers = dist.get_rank(), dist.get_world_size()
    if mesh is None:
        _check_needs_no_mesh(divided, workers)
        hybrid = (one.device_mesh for one in divided if one.device_mesh.ndim == 2 and one.placements[0].is_replicate())
        mesh = next(hybrid, None)
    else:
        _check_mesh(mesh, divided)
    if mesh is None:
        return ReplicaPlace(1, rank, workers, rank, workers)
    if mesh.ndim == 2:
        return ReplicaPlace(mesh.size(0), mesh.get_local_rank(1), mesh.size(1), rank, workers)
    replicas, pipeline, shard, tensor = mesh.shape
    replica, _, own_shard, _ = (mesh.get_local_rank(name) for name in mesh.mesh_dim_names)
    return ReplicaPlace(
        replicas,
        rank % (pipeline * shard * tensor),
        pipeline * shard * tensor,
        replica * shard + own_shard,
        replicas * shard,
        apart=pipeline * tensor > 1,
        staged=pipeline > 1,
    )


def _check_needs_no_mesh(divided: Sequence[DTensor], workers: int) -> None:
    for parameter in divided:
        own = parameter.device_mesh
        if TENSOR in (own.mesh_dim_names or ()) or own.size() < workers:
            raise ValueError(
                f"mesh: expected what replica_mesh has returned, as weights are divided among {own.size()} of the "
                f"{workers} workers by {own.mesh_dim_names}, got None"
            )


def _check_mesh(mesh: DeviceMesh, divided: Sequence[DTensor]) -> None:
    """Refuse a mesh that `replica_mesh` has not made, and a model that is divided by another one."""
    names = mesh.mesh_dim_names
    if names not in ((REPLICATE, SHARD), (REPLICATE, PIPELINE, SHARD, TENSOR)):
        raise ValueError(f"mesh: expected what replica_mesh has returned, got one with the dimensions {names}")
    sizes = dict(zip(names, mesh.shape, strict=True))
    for parameter in divided:
        own = parameter.device_mesh
        own_sizes = dict(zip(own.mesh_dim_names or (), own.shape, strict=False))
        if list(own_sizes)[:2] != [REPLICATE, SHARD] or any(
            sizes.get(name) != size for name, size in own_sizes.items()
        ):
            raise ValueError(
                'model: expected fully_shard(part, mesh=mesh["replicate", "shard"]) for each part, got weights on a '
                f"mesh of {own_sizes or tuple(own.shape)}"
            )
