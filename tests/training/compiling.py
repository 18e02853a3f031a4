"""A compiled training under a supervisor over 2, 3 and 2 workers and a restart: what was found in the cache."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

TRAINER = Path(__file__).with_name("compiled_trainer.py")
SCALES = (("n1", "n2"), ("n1", "n2", "n3"), ("n1", "n2"))
STAGES = ("first generation", "2 to 3 workers", "3 to 2 workers", "restart")
PATIENCE = 400.0
"""Seconds until a generation has compiled."""


@dataclass(frozen=True)
class FirstStep:
    """What a worker's first step took, which compiles.

    Attributes:
        stage: What led to its generation, one of `STAGES`.
        workers: How many workers that has.
        rank: Its rank.
        seconds: From the moment when all workers had joined to the end of the step, with the load of the checkpoint.
        cpu_seconds: What the worker, and the compilers that it has run, used in that time.
        cache: What it looked for in the compiler's caches until its last noted step: counts by the cache's name
            and `cache_hit`, `cache_miss` or `cache_bypass`.
        graphs: How many graphs it has compiled, or taken from a cache, until then.
    """

    stage: str
    workers: int
    rank: int
    seconds: float
    cpu_seconds: float
    cache: dict[str, int]
    graphs: int

    def count(self, what: str) -> int:
        """Sum over the caches of what was a `hit` or a `miss`."""
        return sum(count for name, count in self.cache.items() if name.endswith(f"cache_{what}"))


def over_scales(
    folder: Path, environment: Mapping[str, str] | None = None, arguments: tuple[str, ...] = ()
) -> list[FirstStep]:
    """Train on 2, 3 and 2 workers; then all are killed, and another supervisor goes on. The workers' first steps.

    Args:
        folder: The job's folder.
        environment: Variables of the job.
        arguments: Of the training.
    """
    options: dict[str, Any] = {
        "command": [sys.executable, str(TRAINER), *arguments],
        "environment": {"OMP_NUM_THREADS": "1", **(environment or {})},
        "backend": "torchrun",
        "standby_mib": 2048,
    }
    found: list[FirstStep] = []
    seen: set[int] = set()
    with supervised(folder, *SCALES[0], **options) as job:
        for number, (stage, hosts) in enumerate(zip(STAGES, SCALES, strict=False)):
            if number:
                job.command(*hosts)
            found += _first_steps(job, stage, len(hosts), seen)
    with supervised(folder, *SCALES[0], **options) as job:
        found += _first_steps(job, STAGES[-1], len(SCALES[0]), seen)
    return found


def _first_steps(job: Supervised, stage: str, workers: int, seen: set[int]) -> list[FirstStep]:
    """Wait until all workers of a new generation are past their first steps."""

    def fresh() -> list[dict[str, Any]]:
        assert job.process.poll() is None, job.said
        lines = [line for line in job.lines() if line["event"] == "compiled" and line["pid"] not in seen]
        return [line for line in lines if line["size"] == workers]

    try:
        wait_until(lambda: len(fresh()) >= workers, PATIENCE, f"{stage}: steps of {workers} workers")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.said}") from None
    lines = fresh()
    seen |= {line["pid"] for line in job.lines()}
    return [
        FirstStep(stage, workers, line["rank"], line["first"], line["cpu"], line["cache"], line["graphs"])
        for line in lines
    ]
