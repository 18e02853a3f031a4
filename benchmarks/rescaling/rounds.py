"""One round: a job of two workers grows to three, shrinks to two, and loses one of three to a kill -9."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rescaling.batches import Change, change
from benchmarks.rescaling.launching import Launcher, LauncherError, Running, batches, kill_last_rank

_POLL_SECONDS = 0.02
_START_SECONDS = 300.0
_CHANGE_SECONDS = 180.0
_STEADY_BATCHES = 15
# Stock Horovod drops a change that comes within the same whole second as the one before, and looks once a second: a
# random moment between two looks is what a user would see.
REST_SECONDS = (1.5, 2.5)
# A kill comes to a job that has been at work for a while: what a launcher keeps ready for it is ready.
REST_BEFORE_KILL_SECONDS = (8.0, 10.0)


@dataclass(frozen=True)
class Sample:
    """One measured change.

    Attributes:
        launcher: Whose.
        kind: "growth", "shrink" or "kill".
        change: What it cost.
    """

    launcher: str
    kind: str
    change: Change


def measure_round(
    launcher: Launcher,
    folder: Path,
    rng: random.Random,
    rest: tuple[float, float] = REST_SECONDS,
    rest_before_kill: tuple[float, float] = REST_BEFORE_KILL_SECONDS,
) -> Iterator[Sample]:
    """Measure every kind of change once, and the growth twice; yields each as soon as it is there.

    Args:
        launcher: Whose changes.
        folder: The job's own, empty.
        rng: Draws the moments of the changes.
        rest: Shortest and longest time in seconds before a change, once the one before has settled.
        rest_before_kill: The same before a kill.

    Raises:
        LauncherError: the launcher ended, or a change did not come to pass.
    """
    first, second, third, fourth = launcher.hosts[:4]
    with launcher.start(folder, [first, second]) as job:
        _wait_steady(job, folder, 2, time.monotonic(), _START_SECONDS)

        def changed(kind: str, size: int | None, act: Callable[[], None]) -> Sample:
            time.sleep(rng.uniform(*(rest_before_kill if kind == "kill" else rest)))
            since = time.monotonic()
            act()
            found = _wait_change(job, folder, since, size)
            print(
                f"  {launcher.name} {kind}: {found.latency:.2f} s, pause {found.pause:.2f} s",
                file=sys.stderr,
                flush=True,
            )
            if size is not None:
                _wait_steady(job, folder, size, since, _START_SECONDS)
            return Sample(launcher.name, kind, found)

        yield changed("growth", 3, lambda: job.set_hosts([first, second, third]))
        yield changed("shrink", 2, lambda: job.set_hosts([first, second]))
        # A host that Horovod has just removed may still be in use by the worker that leaves.
        yield changed("growth", 3, lambda: job.set_hosts([first, second, fourth]))
        yield changed("kill", None, lambda: kill_last_rank(folder, 3))


def _wait_change(job: Running, folder: Path, since: float, size: int | None) -> Change:
    for _ in _until(since + _CHANGE_SECONDS):
        if (found := change(batches(folder), since, size)) is not None:
            return found
        job.check()
    raise LauncherError(f"no batch of a world of {size or 'any'} workers within {_CHANGE_SECONDS:.0f} s")


def _wait_steady(job: Running, folder: Path, size: int, since: float, patience: float) -> None:
    """Wait for a few batches of one world of this size."""
    for _ in _until(time.monotonic() + patience):
        newest = [batch for batch in batches(folder) if batch.time > since][-_STEADY_BATCHES:]
        worlds = {(batch.world, batch.size) for batch in newest}
        if len(newest) == _STEADY_BATCHES and len(worlds) == 1 and newest[0].size == size and job.is_settled():
            return
        job.check()
    raise LauncherError(f"no {_STEADY_BATCHES} batches of {size} workers within {patience:.0f} s")


def _until(deadline: float) -> Iterator[None]:
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_SECONDS)
