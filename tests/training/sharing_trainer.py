"""Every rank takes rank 0's state and says whether it is what it was."""

from __future__ import annotations

import collections
from typing import Any

import torch
import torch.distributed as dist

from malletrain.client.distributed import init
from malletrain.client.object_transfer import broadcast_object, control_device


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    weights = collections.OrderedDict(
        weight=torch.randn(33, 5, generator=generator),
        half=torch.randn(9, generator=generator).to(torch.bfloat16),
        flags=torch.rand(7, generator=generator) > 0.5,
        columns=torch.randn(4, 6, generator=generator).t(),
        empty=torch.empty(0, 3),
    )
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "moments": (torch.ones(2), torch.zeros(2))}}, "lr": 0.1}
    sparse = torch.eye(3).to_sparse()
    return {"model": weights, "optimizer": optimizer, "samples": 12, "sparse": sparse, "none": None, "name": "ü"}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.to_dense(), other.to_dense())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


init()
device = control_device()
shared = broadcast_object(state() if dist.get_rank() == 0 else "nothing", device)
assert same(state(), shared)
assert broadcast_object(None if dist.get_rank() == 0 else "nothing", device) is None
print(f"rank {dist.get_rank()} has it", flush=True)
