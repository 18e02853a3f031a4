"""An elastic training that measures its gradient noise scale: `noise_elastic_trainer.py KIND FOLDER UNTIL OUTPUT`.

KIND is plain (`ElasticTraining`), held (a batch that stays the same) or sharded (`ShardedTraining`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from malletrain.client import gradient_noise
from malletrain.client.distributed import ElasticTraining, init
from malletrain.client.fsdp import ShardedTraining
from malletrain.client.training import Training

SIZE = 4096


def main() -> None:
    kind, folder, until, output = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    logged: list[dict[str, float]] = []
    gradient_noise.log_metrics = logged.append  # type: ignore[assignment, attr-defined]
    init("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    if kind == "sharded":
        fully_shard(model[0])
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made: type[Training] = ShardedTraining if kind == "sharded" else ElasticTraining
    held = {"reference_batch": 16, "hold_batch": True} if kind == "held" else {}
    training = made(
        model, optimizer, dataset_size=SIZE, batch_per_worker=8, checkpoint_folder=folder, measure_noise=True, **held
    )
    assert training._noise is not None
    began = training._noise.noise.state_dict()
    inputs = torch.randn(SIZE, 16, generator=torch.Generator().manual_seed(1))
    targets = inputs[:, :4].argmax(1)

    @training.run
    def train() -> None:
        while training.samples < until:
            training.optimizer.zero_grad()
            for indices, weight in training.micro_batches():
                outputs = training.model(inputs[indices])
                (nn.functional.cross_entropy(outputs, targets[indices]) * weight).backward()
            training.step()

    ended = training._noise.noise.state_dict()
    if training.rank == 0:
        output.write_text(json.dumps({"began": began, "ended": ended, "logged": logged}))
    training.finish()
    os._exit(0)  # now and then DistributedDataParallel hangs while it is taken down


if __name__ == "__main__":
    main()
