"""From a plan to the first batch: `python benchmarks/first_batch.py [--rounds 10]`, from the repository's root.

A JobManager with standby processes runs a real training of a small model (20 ms a batch) on virtual nodes, under each
launcher in turn. Every node has been there for ten seconds before it is used. Measured is the time from the call of
ApplyPlan to the end of the first batch on the new nodes,

    growth  of a job from one node to two
    return  of a job that had lost its last node, and gets one again
    start   of another job that has just been submitted, beside the first one; from the call of SubmitJobs

`--keep-seconds 0` ends the supervisor of a job that loses its last node; `--standby-mib 0` goes without standby
processes. Goals that are missed are said on stderr, and the exit status is 1 then. `docs/launchers.md` has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import structlog

from benchmarks.arguments import positive
from benchmarks.rescaling.launching import ENVIRONMENT, TRAINERS, batches
from benchmarks.rescaling.processes import MARK, sweep
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.job_manager.serving import ManagerHarness, serve_manager

LAUNCHERS = {"horovod": "elastic_horovod.py", "torchrun": "distributed.py"}
OURS_SECONDS = 10.0
GOAL_MEDIAN_SECONDS, GOAL_P90_SECONDS = 1.5, 3.0
_STEADY_BATCHES = 15
_LOOK_SECONDS = 0.005
_PATIENCE_SECONDS = 60.0


class TrainingJob:
    """A training under a JobManager, and its notes."""

    def __init__(self, harness: ManagerHarness, generations: Iterator[int], folder: Path, job_id: str) -> None:
        self._harness = harness
        self._generations = generations
        self._folder = folder
        self._job_id = job_id

    async def plan(self, nodes: str) -> float:
        """Give it these nodes; returns when that was asked, in monotonic seconds."""
        since = time.monotonic()
        number = int(self._job_id.removeprefix("j"))
        await self._harness.plan(next(self._generations), **{f"j{number}": nodes})
        return since

    async def first_batch(self, since: float, size: int) -> float:
        """Seconds from a moment to the first batch of a world of this size.

        Raises:
            TimeoutError: there was none.
        """
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                found = [batch.time for batch in batches(self._folder) if batch.time > since and batch.size == size]
                if found:
                    return found[0] - since
                await asyncio.sleep(_LOOK_SECONDS)

    async def steady(self, size: int) -> None:
        """Wait until it trains at a scale."""
        since = time.monotonic()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while len([batch for batch in batches(self._folder) if batch.time > since and batch.size == size]) < (
                _STEADY_BATCHES
            ):
                await asyncio.sleep(_LOOK_SECONDS)

    async def without_nodes(self) -> None:
        """Take its nodes, and wait until they are free."""
        await self.plan("")
        await self._harness.until(self._job_id, "WAITING", timeout=_PATIENCE_SECONDS)

    async def cancel(self) -> None:
        """Cancel it, and wait until its node is free."""
        await self._harness.stub.CancelJob(job_manager_pb2.CancelJobRequest(job_id=self._job_id))
        await self._harness.until(self._job_id, "CANCELLED", timeout=_PATIENCE_SECONDS)


class TrainingSite:
    """A JobManager with three nodes, and the trainings on them."""

    def __init__(self, harness: ManagerHarness, launcher: str, folder: Path) -> None:
        self._harness = harness
        self._launcher = launcher
        self._folder = folder
        self._generations = count(1)
        self._numbers = count(1)

    async def submit(self) -> TrainingJob:
        """Submit one more training, in a folder of its own."""
        folder = self._folder / f"training-{next(self._numbers)}"
        folder.mkdir()
        job_id = await self._harness.submit(
            *("python", str(TRAINERS / LAUNCHERS[self._launcher])),
            working_directory=str(folder),
            environment={MARK: str(folder)},
            backend=resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{self._launcher.upper()}"),
        )
        return TrainingJob(self._harness, self._generations, folder, job_id)


@asynccontextmanager
async def site(launcher: str, folder: Path, standby_mib: int, keep_seconds: float) -> AsyncIterator[TrainingSite]:
    """A JobManager with nodes n0, n1 and n2, which have been there for ten seconds."""
    settings = {"standby_memory_mib": standby_mib, "keep_supervisor_seconds": keep_seconds}
    try:
        async with serve_manager(folder / "state", Path(sys.executable), "n0 n1 n2", **settings) as harness:
            await asyncio.sleep(OURS_SECONDS)
            yield TrainingSite(harness, launcher, folder)
    finally:
        for own in folder.glob("training-*"):
            sweep(own)


async def measure(launcher: str, rounds: int, standby_mib: int, keep_seconds: float) -> dict[str, list[float]]:
    """Seconds of each growth, each return and each start."""
    found: dict[str, list[float]] = {"growth": [], "return": [], "start": []}
    folder = Path(tempfile.mkdtemp(prefix="first-batch-"))
    try:
        async with site(launcher, folder, standby_mib, keep_seconds) as trainings:
            job = await trainings.submit()
            await job.plan("n0")
            await job.steady(1)
            for number in range(1, rounds + 1):
                await asyncio.sleep(OURS_SECONDS)
                found["growth"].append(await job.first_batch(await job.plan("n0 n1"), 2))
                await job.steady(2)
                await job.without_nodes()
                await asyncio.sleep(1.0)
                found["return"].append(await job.first_batch(await job.plan("n0"), 1))
                await job.steady(1)
                since = time.monotonic()
                other = await trainings.submit()
                await other.plan("n2")
                found["start"].append(await other.first_batch(since, 1))
                await other.steady(1)
                await other.cancel()
                said = ", ".join(f"{kind} {seconds[-1]:.2f} s" for kind, seconds in found.items())
                print(f"{launcher} {number} of {rounds}: {said}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    return found


def summary(seconds: list[float]) -> dict[str, float]:
    """Number, median, 90th percentile and maximum."""
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "median_s": round(statistics.median(ordered), 2),
        "p90_s": round(ordered[math.ceil(0.9 * len(ordered)) - 1], 2),
        "worst_s": round(ordered[-1], 2),
    }


def meets_goals(figures: Mapping[str, float]) -> bool:
    """Whether the median and the 90th percentile are as they should be."""
    return figures["median_s"] <= GOAL_MEDIAN_SECONDS and figures["p90_s"] <= GOAL_P90_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=10, help="growths, returns and starts of each launcher (10)")
    parser.add_argument("--only", choices=LAUNCHERS, action="append", help="measure this launcher alone")
    parser.add_argument("--standby-mib", type=int, default=2048, help="largest share of a standby process (2048)")
    parser.add_argument("--keep-seconds", type=float, default=300.0, help="how long supervisors are kept (300)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    os.environ.update(ENVIRONMENT)
    results = {}
    for launcher in options.only or LAUNCHERS:
        found = asyncio.run(measure(launcher, options.rounds, options.standby_mib, options.keep_seconds))
        results |= {f"{launcher} {kind}": summary(seconds) for kind, seconds in found.items()}
    if options.json:
        print(json.dumps(results))
    else:
        print("| | n | median in s | p90 | worst |\n| --- | ---: | ---: | ---: | ---: |")
        for name, figures in results.items():
            print(f"| {name} | " + " | ".join(f"{value:g}" for value in figures.values()) + " |")
    missed = [name for name, figures in results.items() if not meets_goals(figures)]
    for name in missed:
        goals = f"a median of {GOAL_MEDIAN_SECONDS:g} s and a p90 of {GOAL_P90_SECONDS:g} s"
        print(f"goal missed: {name}: expected at most {goals}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
