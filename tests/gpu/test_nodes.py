"""What agents and supervisors see of a real GPU: the node check, and whether a process is at work there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.agent.node_check.judging import CheckLimits, NodeMeasures, reasons_against
from malletrain.agent.node_check.measuring import gpus
from malletrain.agent.node_check.running import check_node
from malletrain.common.activity import ActivityWatch
from malletrain.common.gpu_use import gpu_is_busy
from tests.gpu import nvml
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200), pytest.mark.usefixtures("only_gpu")]

# It waits without using the CPU, as a worker does that waits for its GPU.
WORKS = """
import sys, time, torch
busy, began = sys.argv[1] == "busy", time.monotonic()
numbers = torch.rand(8192, 8192, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
while busy:
    done = torch.cuda.Event(blocking=True)
    for _ in range(200):
        numbers @ numbers
    done.record()
    done.synchronize()
time.sleep(600)
"""
PATIENCE = 60.0


@contextmanager
def process(kind: str) -> Iterator[int]:
    """A process with a context on the GPU, that keeps it busy or does nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKS, kind], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child.pid
        finally:
            child.kill()


def test_the_node_check_sees_the_gpus_and_finds_them_well() -> None:
    import torch

    found = gpus()
    print(f"GPUs: {found}, memory of the first: {nvml.memory_mib()[0]:.0f} MiB")
    assert len(found) == torch.cuda.device_count()
    assert {gpu.code for gpu in found} == {0}
    assert all(gpu.ecc_errors in (None, 0) for gpu in found)
    assert reasons_against(NodeMeasures(gpus=found), CheckLimits()) == []


def test_the_whole_check_takes_less_than_its_second() -> None:
    assert asyncio.run(check_node("n1", CheckLimits(folders=("/tmp",)))) == ""


def test_a_process_at_work_on_the_gpu_is_told_from_one_that_only_has_a_context() -> None:
    with process("busy") as pid:
        wait_until(lambda: gpu_is_busy({pid}), PATIENCE, "a busy GPU")
        assert nvml.processes() >= {pid}
    with process("idle") as pid:
        wait_until(lambda: not gpu_is_busy({pid}), PATIENCE, "an idle GPU")


def test_a_worker_whose_gpu_works_is_not_idle_although_its_cpu_is() -> None:
    with process("busy") as pid:
        watch, looks = ActivityWatch(gpu_is_busy), []
        deadline = time.monotonic() + PATIENCE

        def looked() -> bool:
            looks.append(watch.look([pid], time.monotonic()))
            return time.monotonic() > deadline - PATIENCE + 10

        wait_until(looked, PATIENCE, "ten seconds of looks")
        assert set(looks) == {None}
    with process("idle") as pid:
        watch = ActivityWatch(gpu_is_busy)
        wait_until(lambda: watch.look([pid], time.monotonic()), PATIENCE, "an idle process")
