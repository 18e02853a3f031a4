"""What of a step is a worker's own can be told for exchanges after the passes, and for nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

SCRIPT = """
import json, os, sys, time
from statistics import median
import torch
import torch.distributed as dist
from malletrain.client.step_watch import StepWatch

kind, rank = sys.argv[1], int(sys.argv[2])
os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3])
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
elif kind == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found = []
StepWatch(lambda own, whole: found.append((own, whole))).install()
for _ in range(12):
    optimizer.zero_grad()
    if rank == 1:
        time.sleep(0.2)
    model(torch.ones(8, 64)).sum().backward()
    if kind == "own":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
medians = [median(column) for column in zip(*found)]
print(json.dumps(medians), flush=True)
os._exit(0)
"""


def train(folder: Path, kind: str) -> list[list[float]]:
    """Median of the own part and of the whole of a step, by rank; empty lists where nothing is measured."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    port = str(free_port())
    started = [
        subprocess.Popen([sys.executable, str(script), kind, str(rank), port], stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        return [json.loads(process.communicate(timeout=120)[0]) for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("kind", ["ddp", "own"])
def test_a_worker_that_the_others_wait_for_is_told_from_them(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    (first, _), (slow, _), (third, _) = train(tmp_path, kind)
    assert slow > 0.2
    assert max(first, third) < slow - 0.1, "the others' waits are none of their own time"


def test_where_passes_contain_exchanges_nothing_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert train(tmp_path, "fsdp2") == [[], [], []]
