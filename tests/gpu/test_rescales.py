"""A supervisor and its workers on one GPU: growth, shrink, loss, NCCL, compiled models, and what is left in memory."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.gpu import nvml
from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TRAINER = Path(__file__).with_name("trainer.py")
PATIENCE = 120.0
STANDBY_MIB = 4096
RESCALES = 20
SPARE_MIB = 64.0
"""Memory of a GPU that comes and goes without being anybody's."""
SHARES = "workers share a GPU, which NCCL does not allow"


@contextmanager
def training(folder: Path, *arguments: str, hosts: tuple[str, ...] = ("n1", "n2")) -> Iterator[Supervised]:
    """The trainer under a supervisor that forks its workers."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with supervised(
        folder,
        *hosts,
        command=[sys.executable, str(TRAINER), *arguments],
        environment=environment,
        backend="torchrun",
        standby_mib=STANDBY_MIB,
    ) as job:
        wait_batches(job, len(hosts))
        yield job


def wait_batches(job: Supervised, size: int, count: int = 3, since: float = 0.0) -> list[dict[str, Any]]:
    """Wait for batches of so many workers after a moment; rank 0's."""

    def found() -> list[dict[str, Any]]:
        assert job.process.poll() is None, job.said
        fresh = [batch for batch in job.batches() if batch["size"] == size and batch["time"] > since]
        return fresh if len(fresh) >= count and fresh[-1]["pid"] == fresh[-count]["pid"] else []

    try:
        return wait_until(found, PATIENCE, f"{count} batches of {size} workers")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.said}") from None


def rescale(job: Supervised, *hosts: str) -> None:
    """Command hosts, and wait until they train."""
    since = job.batches()[-1]["time"]
    before = {line["pid"] for line in job.lines()}
    job.command(*hosts)
    wait_until(
        lambda: any(batch["size"] == len(hosts) and batch["pid"] not in before for batch in job.batches()),
        PATIENCE,
        f"workers on {hosts}: {job.said if job.process.poll() is not None else ''}",
    )
    wait_batches(job, len(hosts), since=since)


def starts(job: Supervised) -> list[dict[str, Any]]:
    """What workers have noted at their first batch."""
    return [line for line in job.lines() if line["event"] == "start"]


def check_samples(job: Supervised) -> None:
    """Each batch goes on from where one before it has ended, or repeats what a loss has undone; none is left out."""
    counted = [batch["before"] for batch in job.batches()]
    assert counted[0] == 0
    reached = 0
    for batch in job.batches():
        assert batch["before"] <= reached, f"{batch['before'] - reached} samples are left out"
        reached = max(reached, batch["samples"])


def kill_last(job: Supervised, size: int) -> None:
    """kill -9 of the worker with the highest rank."""
    newest = [line for line in job.lines() if line["size"] == size and line["rank"] == size - 1][-1]
    os.kill(newest["pid"], signal.SIGKILL)


def test_resnet18_grows_shrinks_and_loses_a_worker(folder: Path, device: str) -> None:
    network = ("--network", "resnet18") if device == "cuda" else ()
    with training(folder, *network, "--batch", "16") as job:
        rescale(job, "n1", "n2", "n3")
        rescale(job, "n1")
        rescale(job, "n1", "n2", "n4")
        since = job.batches()[-1]["time"]
        kill_last(job, 3)
        wait_batches(job, 3, since=since)
        check_samples(job)
        found, said = starts(job), job.said
    assert {line["device"] for line in found} == {"cuda:0" if device == "cuda" else "cpu"}
    assert (SHARES in said) == (device == "cuda")
    if device == "cuda":
        several = {line["backend"] for line in found if line["size"] > 1}
        assert several == {"cpu:gloo,cuda:gloo"}
        # What torch takes by itself: NCCL for the GPU, and in older versions also Gloo for the CPU.
        alone = {line["backend"] for line in found if line["size"] == 1}
        assert {"cuda:nccl" in backend for backend in alone} == {True}, alone


def test_one_worker_with_nccl_starts_moves_pauses_and_is_killed(folder: Path, device: str) -> None:
    backend = ("--backend", "cpu:gloo,cuda:nccl") if device == "cuda" else ()
    with training(folder, *backend, hosts=("n1",)) as job:
        rescale(job, "n2")
        job.stop(grace=30.0)
        assert job.outcome()["outcome"] == "STOPPED", job.said
    before = job.batches()[-1]["samples"]
    with training(folder, *backend, hosts=("n1",)) as job:
        wait_until(lambda: job.batches()[-1]["samples"] > before, PATIENCE, "more batches")
        since = job.batches()[-1]["time"]
        kill_last(job, 1)
        wait_batches(job, 1, since=since)
        check_samples(job)
        backends = {line["backend"] for line in starts(job)}
    assert len({line["pid"] for line in job.lines()}) >= 4
    if device == "cuda":
        assert backends == {"cpu:gloo,cuda:nccl"}


def test_20_rescales_leave_nothing_on_the_gpu(folder: Path, device: str) -> None:
    rescales = RESCALES if device == "cuda" else 2
    used = [nvml.memory_mib()[1]] if device == "cuda" else [0.0]
    with training(folder, hosts=("n1",)) as job:
        for number in range(rescales):
            rescale(job, *(("n1", "n2") if number % 2 == 0 else ("n1",)))
            if device == "cuda" and number % 2:
                wait_until(lambda: len(nvml.processes() & pids_of(job)) == 1, PATIENCE, "one worker on the GPU")
                used.append(nvml.memory_mib()[1])
        check_samples(job)
        pids = pids_of(job)
    if device != "cuda":
        return
    wait_until(lambda: not nvml.processes() & pids, PATIENCE, "no context of the job")
    wait_until(lambda: nvml.memory_mib()[1] <= used[0] + SPARE_MIB, PATIENCE, f"{used[0]} MiB as before")
    print(f"MiB in use before, and with one worker after each second rescale: {used}; after: {nvml.memory_mib()[1]}")
    assert max(used[2:]) <= used[1] + SPARE_MIB


def pids_of(job: Supervised) -> set[int]:
    """All processes that have trained for it."""
    return {line["pid"] for line in job.lines()}


def test_a_standby_process_touches_no_gpu_and_its_forks_do(folder: Path, device: str) -> None:
    with training(folder) as job:
        ready = re.compile(r"standby process (\d+) is ready")

        def standby() -> int:
            found = ready.findall((folder / "supervisor.log").read_text())
            return int(found[-1]) if found else 0

        pid = wait_until(standby, PATIENCE, "a standby process")
        before = pids_of(job)
        rescale(job, "n1", "n2", "n3")
        said = (folder / "supervisor.log").read_text()
        devices = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        forked = {line["pid"] for line in starts(job) if line["pid"] not in before}
        on_gpu = nvml.processes() if device == "cuda" else forked
    assert standby_pid_alive(pid, said), said
    assert len(forked) == 3
    assert not [path for path in devices if path.startswith("/dev/nvidia")]
    assert pid not in on_gpu
    if device == "cuda":
        assert forked <= on_gpu
    assert "as a new interpreter: no standby" not in said.partition(f"standby process {pid} is ready")[2]


def standby_pid_alive(pid: int, said: str) -> bool:
    """Whether no later standby process has taken the place of this one."""
    return f"standby process {pid} is ready" in said and "no standby process for" not in said


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_models_and_cuda_graphs_go_on_after_a_rescale(folder: Path, mode: str) -> None:
    with training(folder, "--compile", mode, hosts=("n1",)) as job:
        rescale(job, "n1", "n2")
        rescale(job, "n1")
        check_samples(job)
        losses = [batch["loss"] for batch in job.batches()]
        first = {line["pid"]: line["moments"]["first"] - line["moments"]["loaded"] for line in starts(job)}
    print(f"{mode}: seconds of each worker's first step: {[round(seconds, 2) for seconds in first.values()]}")
    assert all(loss == loss and loss < 10 for loss in losses)
