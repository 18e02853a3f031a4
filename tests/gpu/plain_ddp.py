"""DDP on a GPU as torch's manual has it, which knows nothing of MalleTrain: it saves now and then, and goes on there.

It ends when it has trained with so many batches. The workers share a GPU, so that it exchanges gradients by Gloo.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, PAUSE_SECONDS = int(sys.argv[1]), 10, 0.02

dist.init_process_group("gloo")
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
path, step = Path("plain.pt"), 0
if path.exists():
    saved = torch.load(path, map_location=device, weights_only=True)
    plain.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
model = DistributedDataParallel(plain)
while step < STEPS:
    inputs = torch.randn(32, 64, device=device)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1] ** 2)
    loss.backward()
    optimizer.step()
    step += 1
    time.sleep(PAUSE_SECONDS)
    if step % EVERY == 0 and dist.get_rank() == 0:
        torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "plain.new")
        Path("plain.new").replace(path)
        print(f"step {step} of {dist.get_world_size()} workers on {device}: loss {loss.item():.3f}", flush=True)
dist.barrier()
