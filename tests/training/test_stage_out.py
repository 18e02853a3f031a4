"""All nodes of a job are given back at once, and have less time than a save takes: their agents copy the checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.agent.running import RunningAgent
from tests.supervisor.running import Supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until
from tests.training.test_handover import BATCH, ROOT, checkpoints, events, goes_on, training

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SLOW_DISK = Path(__file__).with_name("slow_disk")
SAVE_SECONDS, GRACE = 4.0, 2.0
"""A file of a checkpoint takes so long, and nodes have less."""
LATE_SECONDS = 6.0
"""By how much a busy machine may be late."""


@dataclass
class SlowlySaved:
    """A training whose checkpoints are on a slow disk, on the nodes n1 and n2, whose agents are processes."""

    job: Supervised
    agents: dict[str, RunningAgent]
    disk: Path

    def first_checkpoint(self) -> int:
        """Wait until there is one; its samples. From then on workers know how long a save takes."""
        wait_until(lambda: complete(self.job), 60, "the first checkpoint")
        self.job.wait_batch(2)
        return max(complete(self.job))

    def release_all(self) -> int:
        """Give all nodes back; the samples that have been done by then."""
        began = time.monotonic()
        state = self.job.release("n1", "n2", grace=GRACE)
        assert time.monotonic() - began < GRACE + LATE_SECONDS, "the release waits for nothing that is copied"
        assert not self.job.processes("n1"), state
        assert not self.job.processes("n2"), state
        self.job.stop(0.0, keep=120.0)  # as JobManager says it: the supervisor stays
        return max(line["samples"] for line in events(self.job, "batch")) + BATCH

    def go_on(self, *nodes: str) -> int:
        """Train again; the samples from which that has begun."""
        before = len(events(self.job, "loaded"))
        self.job.command(*nodes)
        self.job.wait_batch(len(nodes))
        return int(events(self.job, "loaded")[before]["samples"])

    @property
    def marks(self) -> list[str]:
        folder = self.job.folder / "stage-out"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def half_copied_at(self, samples: int) -> list[str]:
        return [name for name in checkpoints(self.job) if name.startswith(f".samples-{samples:015d}.pt.")]


def complete(job: Supervised) -> list[int]:
    """Samples of the checkpoints that are complete."""
    whole = [path for path in (job.folder / "checkpoints").glob("samples-*") if path.suffix != ".parts"]
    ends = [path for path in whole if path.is_file() or (path / ".metadata").exists()]
    return [int(path.stem.partition("-")[2]) for path in ends]


@contextmanager
def slowly_saved(folder: Path, *options: str, divided: bool = False, grace: float = 1.5) -> Iterator[SlowlySaved]:
    state, disk = folder / "agents", folder / "disk"
    state.mkdir()
    disk.write_text(f"{SAVE_SECONDS}")
    slow = {"SLOW_DISK": str(disk), "PYTHONPATH": f"{SLOW_DISK}{os.pathsep}{ROOT}"}
    with ExitStack() as stack:
        running = {}
        for node in ("n1", "n2"):
            environment = {**os.environ, **slow}
            running[node] = RunningAgent(node, state, "127.0.0.1:9", grace, *options, environment=environment)
            stack.callback(running[node].close)
        addresses = {name: agent.address for name, agent in running.items()}
        settings = {
            "agents": addresses,
            "certificate_file": certificate(state, "supervisor"),
            "environment": slow,
            "keep_seconds": 120.0,
            "arguments": ("--checkpoint-seconds", "1"),
        }
        job = stack.enter_context(training(folder / "job", "n1", "n2", divided=divided, **settings))
        yield SlowlySaved(job, running, disk)


def stage_out(seconds: float) -> tuple[str, ...]:
    return ("--stage-out-seconds", f"{seconds:g}", "--stage-out-mib", "64")


@pytest.mark.parametrize("divided", [False, True])
def test_no_progress_is_lost(tmp_path: Path, divided: bool) -> None:
    with slowly_saved(tmp_path, *stage_out(60), divided=divided) as saved:
        first = saved.first_checkpoint()
        saved.disk.write_text("15")  # the next workers have booted long before
        done = saved.release_all()
        assert done > first
        assert f"stopping at {done} samples" in saved.job.said, "no worker was killed"
        assert saved.marks, "the supervisor knows that it is copied"
        assert saved.go_on("n1", "n2") == done, saved.job.said
        goes_on(saved.job)
        assert not saved.marks
        assert "is copied, in " in saved.job.said
        assert "waits 6" in saved.job.said, "the supervisor has waited for it"


def test_without_that_it_is(tmp_path: Path) -> None:
    with slowly_saved(tmp_path) as saved:
        first = saved.first_checkpoint()
        done = saved.release_all()
        assert not saved.marks
        assert first <= saved.go_on("n1", "n2") < done


def test_a_lost_agent_costs_what_was_not_copied_and_no_more_time_than_was_said(tmp_path: Path) -> None:
    with slowly_saved(tmp_path, *stage_out(10)) as saved:
        first = saved.first_checkpoint()
        done = saved.release_all()
        (half,) = wait_until(lambda: saved.half_copied_at(done), 10, "half of a checkpoint")
        (copying,) = children_of(saved.agents["n1"].process.pid)
        saved.agents["n1"].process.kill()
        wait_until(lambda: not Path(f"/proc/{copying}").exists(), 10, "the end of what copies")
        began = time.monotonic()
        assert first <= saved.go_on("n2") < done
        assert time.monotonic() - began < 10 + 5 + 30, "a boot included"
        assert half not in checkpoints(saved.job)
        assert not saved.marks
        assert "was not copied in time" in saved.job.said


def test_at_the_limit_copying_ends_and_the_last_checkpoint_counts(tmp_path: Path) -> None:
    with slowly_saved(tmp_path, *stage_out(8)) as saved:
        first = saved.first_checkpoint()
        saved.disk.write_text("600")
        done = saved.release_all()
        wait_until(lambda: not saved.marks, 20, "the end of copying")
        assert not saved.half_copied_at(done)
        assert "8 s are over" in saved.job.said
        saved.disk.write_text("0")
        assert first <= saved.go_on("n1", "n2") < done


@pytest.mark.parametrize("grace", [1.5, 60.0])
def test_an_agent_that_must_go_copies_within_its_own_grace(tmp_path: Path, grace: float) -> None:
    with slowly_saved(tmp_path, *stage_out(60), grace=grace) as saved:
        saved.first_checkpoint()
        agent = saved.agents["n1"].process
        agent.terminate()
        done = saved.release_all()
        agent.wait(30)
        assert not saved.half_copied_at(done)
        assert (done in complete(saved.job)) == (grace > SAVE_SECONDS)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
