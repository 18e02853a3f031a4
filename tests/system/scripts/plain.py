"""A plain PyTorch loop, as a stranger would write it, with MalleTrain's one line."""

import sys

import torch
from torch import nn
from torch.nn import functional

from malletrain.client import report

BATCH = 32
batches = int(sys.argv[1])
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(batches):
    inputs = torch.randn(BATCH, 16)
    loss = functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(BATCH)
print("loss", loss.item())
