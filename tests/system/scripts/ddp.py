"""A DistributedDataParallel loop for torchrun, as a stranger would write it, with MalleTrain's one line."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from malletrain.client import report

BATCH = 32
batches = int(sys.argv[1])
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(batches):
    inputs = torch.randn(BATCH, 16)
    loss = functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(BATCH * dist.get_world_size())
if dist.get_rank() == 0:
    print("loss", loss.item())
dist.destroy_process_group()
