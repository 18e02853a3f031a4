"""The client on a real GPU: the device that an agent gives a worker, steps not yet done, aborted NCCL groups."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from malletrain.agent.environment import worker_environment
from malletrain.client.devices import AppliedSteps, gpu_place

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200), pytest.mark.usefixtures("only_gpu")]

LONG_CYCLES = 3_000_000_000
"""A second or two of any GPU."""
PLACE = """
import torch
from malletrain.client.devices import gpu_place, worker_device
device = worker_device()
print(torch.cuda.device_count(), device, gpu_place(device))
"""
GROUPS = """
import os, torch
import torch.distributed as dist
from malletrain.client.distributed import init
from malletrain.client.elastic import worker_device
device = worker_device()
for round in range(3):
    init("nccl")
    numbers = torch.ones(1000, device=device)
    dist.all_reduce(numbers)
    torch.cuda.synchronize()
    assert numbers.sum().item() == 1000
    # As when another worker is lost: without the others.
    dist.distributed_c10d._abort_process_group()
    print("group", round, os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"])
os._exit(0)
"""


def run(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_worker_has_the_gpu_that_its_agent_gives_it_by_number_or_by_name() -> None:
    name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    expected = f"1 cuda:0 {gpu_place(torch.device('cuda', 0))}"
    for inherited in ("", "0", name):
        agent = {**os.environ, "CUDA_VISIBLE_DEVICES": inherited} if inherited else dict(os.environ)
        given = worker_environment(agent, {"MALLETRAIN_NODE": "n1#0"}, os.path.dirname(sys.executable), 1)  # noqa: PTH120
        assert given["CUDA_VISIBLE_DEVICES"] == (inherited or "0")
        assert run(PLACE, given).strip() == expected


def test_the_local_rank_chooses_among_the_gpus() -> None:
    count = torch.cuda.device_count()
    for rank in range(count + 1):
        found = run(PLACE, {**os.environ, "LOCAL_RANK": str(rank)})
        assert f"cuda:{rank % count} " in found


def test_a_step_that_has_not_been_done_is_told_from_one_that_has() -> None:
    model = torch.nn.Linear(2, 2).cuda()
    steps = AppliedSteps(model)
    steps.note()
    assert steps.wait(60.0)
    torch.cuda._sleep(LONG_CYCLES)
    steps.note()
    assert not steps.wait(0.05)
    assert steps.wait(60.0)


def test_nccl_groups_are_aborted_and_made_again_in_one_process() -> None:
    said = run(GROUPS, {**os.environ, "MALLETRAIN_COLLECTIVE_SECONDS": "40"})
    assert said.splitlines() == [f"group {number} 40" for number in range(3)]
