"""Models that are divided within a replica and repeated across replicas (HSDP), with one line more than FSDP2 needs.

```python
init()
mesh = replica_mesh()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
training = ShardedTraining(model, optimizer, ...)
```

`malletrain submit --nodes-per-replica 2` says how many nodes one copy of the model is divided among. The job's scale is
whole replicas then, the nodes of a replica follow each other in rank order, and a lost node costs no step as long as
one replica is whole.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from malletrain.client.job_context import read_workers_per_replica

REPLICATE, SHARD = "replicate", "shard"
"""Names of the mesh's dimensions, the outer one first."""


def replica_mesh(workers_per_replica: int | None = None, device_type: str | None = None) -> DeviceMesh:
    """The mesh of this scale, (replicas, workers of a replica), for `fully_shard`; all workers call it after `init`.

    Args:
        workers_per_replica: Workers that one copy of the model is divided among. None: those of as many nodes as the
            job was submitted with (`--nodes-per-replica`); all workers where it says nothing, and outside MalleTrain.
        device_type: Where the model is, `cuda` or `cpu`; None: on GPUs where torch can use some.

    Returns:
        A mesh with the dimensions `replicate` and `shard`.

    Raises:
        ValueError: the workers are no whole number of replicas.
    """
    workers = dist.get_world_size()
    each = workers_per_replica or read_workers_per_replica(os.environ) or workers
    if each < 1 or workers % each:
        raise ValueError(f"workers_per_replica: expected a divisor of the {workers} workers, got {each}")
    kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return init_device_mesh(kind, (workers // each, each), mesh_dim_names=(REPLICATE, SHARD))


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a worker is in the mesh of a model.

    Attributes:
        replicas: Copies of the model.
        shard: Which part of its copy the worker has, from 0.
        shards: Parts of a copy.
    """

    replicas: int
    shard: int
    shards: int


def replica_place(model: torch.nn.Module) -> ReplicaPlace:
    """Where this worker is, as the model's parameters say.

    Args:
        model: The model, after `fully_shard`.
    """
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        if mesh is not None and mesh.ndim == 2 and parameter.placements[0].is_replicate():
            return ReplicaPlace(mesh.size(0), mesh.get_local_rank(1), mesh.size(1))
    return ReplicaPlace(1, dist.get_rank(), dist.get_world_size())
