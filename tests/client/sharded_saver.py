"""One of two workers that save a divided state together, of which one may have no memory for copies."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from malletrain.client.distributed import init
from malletrain.client.neighbour_copies import NeighbourCopies
from malletrain.client.replicas import ReplicaPlace
from malletrain.client.sharded_checkpoints import ShardedCheckpoints


def main() -> None:
    """Save while the second worker has no memory, load, and try to copy to the neighbour."""
    init()
    rank, folder = dist.get_rank(), Path(sys.argv[1])
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(0)])

    def memory() -> int:
        return 0 if rank == 1 else 1 << 40

    checkpoints = ShardedCheckpoints(folder, 30.0, memory=memory)
    checkpoints.save(8, lambda: {"weight": weight}, (lambda: {"samples": 8}) if rank == 0 else None)
    print(f"{rank}: saved at once: {checkpoints._writing is not None and checkpoints._writing.done}", file=sys.stderr)
    checkpoints.wait()
    newest = checkpoints.newest()
    assert newest is not None
    again = distribute_tensor(torch.zeros(5, 2), mesh, [Shard(0)])
    checkpoints.load_shards(newest, {"weight": again})
    assert torch.equal(again.to_local(), weight.to_local())
    assert checkpoints.load_plain(newest) == {"samples": 8}

    copies = NeighbourCopies(folder, 0.0, memory=memory)
    place = ReplicaPlace(replicas=1, shard=rank, shards=2, batch_part=rank, batch_parts=2)
    for samples in (9, 10):
        copies.begin(samples, place, lambda: {"weight": weight}, dict, {})
        copies.wait()
    assert copies.costs() == {}
    assert not copies.is_due()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
