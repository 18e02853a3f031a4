"""The state goes from one generation of workers to the next in the memory of nodes, without the disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.agent.running import agents
from tests.supervisor.running import Supervised, supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("handover_trainer.py")
ROOT = Path(__file__).parents[2]
BATCH = 12


@contextmanager
def training(
    folder: Path, *nodes: str, divided: bool, arguments: tuple[str, ...] = (), **more: Any
) -> Iterator[Supervised]:
    kind = ("--divided",) if divided else ()
    command = [sys.executable, str(SCRIPT), *kind, *arguments]
    environment = {"PYTHONPATH": str(ROOT), **more.pop("environment", {})}
    # Forked from a standby process, as in an installation: others boot for long on a busy machine.
    settings = {"backend": "torchrun", "environment": environment, "standby_mib": 2048, **more}
    with supervised(folder, *nodes, command=command, **settings) as job:
        job.wait_confirmed()
        job.wait_batch(len(nodes))
        yield job


def events(job: Supervised, event: str) -> list[dict[str, Any]]:
    return [line for line in job.lines() if line["event"] == event]


def goes_on(job: Supervised, *, lost: int = 0) -> None:
    """Whether each generation has gone on from the very state in which the one before has ended."""
    loaded = [line for line in events(job, "loaded") if line["samples"]]
    after = {line["samples"] + BATCH: line["state"] for line in events(job, "batch")}
    assert loaded
    for line in loaded:
        assert line["state"] == after[line["samples"]], job.said
    samples = [line["samples"] for line in events(job, "batch") if line["rank"] == 0]
    assert len(samples) - len(set(samples)) == lost
    assert sorted(set(samples)) == list(range(0, len(set(samples)) * BATCH, BATCH))


def checkpoints(job: Supervised) -> list[str]:
    folder = job.folder / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("divided", [False, True])
def test_a_state_survives_growth_and_releases_without_the_disk(tmp_path: Path, divided: bool) -> None:
    with training(tmp_path, "n1", "n2", divided=divided) as job:
        assert not checkpoints(job)
        job.rescale("n1", "n2", "n3")  # n3 has never read anything
        wait_until(lambda: checkpoints(job), 30, "the checkpoint that follows at once")
        (taken,) = {line["samples"] for line in events(job, "loaded") if line["size"] == 3}
        assert taken > 0
        for name in checkpoints(job):
            assert f"{taken:015d}" not in name, "the state was not on disk when it was loaded"
        before = checkpoints(job)
        job.rescale("n2", "n3")  # without rank 0's node, which has a part of the state
        (taken,) = {line["samples"] for line in events(job, "loaded") if line["node"] == "n2" and line["size"] == 2} - {
            0
        }
        assert not any(f"{taken:015d}" in name for name in before)
        goes_on(job)
        assert "goes by way of the disk" not in job.said
        # Whether the next workers have booted by now or not, nothing is lost.
        job.release("n2", grace=30.0)
        job.wait_batch(1)
        goes_on(job)


def test_the_agents_of_nodes_hold_it_from_one_worker_to_the_next(tmp_path: Path) -> None:
    with agents(tmp_path / "agents", "n1", "n2", "n3", standby_mib=1024) as running:
        addresses = {name: agent.address for name, agent in running.items()}
        shown = certificate(tmp_path / "agents", "supervisor")
        with training(tmp_path / "job", "n1", "n2", divided=True, agents=addresses, certificate_file=shown) as job:
            assert not checkpoints(job)
            job.rescale("n2", "n3")
            (taken,) = {line["samples"] for line in events(job, "loaded")} - {0}
            goes_on(job)
            assert "goes by way of the disk" not in job.said
            wait_until(lambda: checkpoints(job), 30, "the checkpoint that follows")
            assert not any(f"{taken:015d}" in name for name in checkpoints(job))


def test_a_small_state_goes_by_way_of_the_disk(tmp_path: Path) -> None:
    large = ("--handover-bytes", str(1 << 30))
    with training(tmp_path, "n1", "n2", divided=False, arguments=large) as job:
        job.rescale("n2")
        (taken,) = {line["samples"] for line in events(job, "loaded")} - {0}
        assert checkpoints(job)[0] == f"samples-{taken:015d}.pt"
        goes_on(job)


def test_a_worker_that_stays_saves_where_rank_0_has_no_time_for_it(tmp_path: Path) -> None:
    arguments = ("--handover-bytes", str(1 << 30), "--save-seconds", "4")
    with training(tmp_path, "n1", "n2", divided=False, arguments=arguments) as job:
        assert not checkpoints(job)
        began = time.monotonic()
        state = job.release("n1", grace=2.0)
        assert time.monotonic() - began < 4, "the node is free before anybody can have saved"
        assert not job.processes("n1"), state
        job.wait_batch(1)
        goes_on(job)
        assert checkpoints(job)
