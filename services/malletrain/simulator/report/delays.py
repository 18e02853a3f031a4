"""How long main jobs wait for nodes that trainings have: only what was measured, with its source."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.report.wording import finite

if TYPE_CHECKING:
    from malletrain.simulator.journal.record import Journal

_MAX_BYTES = 1 << 20
_START_KEY, _JOBS_KEY = "start_delta_p99_s", "main_jobs"
REFERENCE = (
    "In the project's own test with Slurm (16 nodes, 62 main jobs), 99 of 100 main jobs started at most 1.02 s later "
    "than without MalleTrain; two runs of Slurm alone differed by up to 0.37 s (docs/zero-impact.md)."
)
"""What docs/zero-impact.md reports, for readers whose own delay was not measured."""


@dataclass(frozen=True)
class MeasuredDelay:
    """A measured delay.

    Attributes:
        seconds: The 99th percentile in seconds.
        what: Of what: `99 of 100 main jobs started at most so much later`.
        source: Where it was measured, and how often.
    """

    seconds: float
    what: str
    source: str


def read_delay(path: Path) -> MeasuredDelay:
    """How much later main jobs start, from the file of `benchmarks/zero_impact.py`.

    Raises:
        InvalidInputError: it can't be read, or is not such a file; names the field.
    """
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError("--delays", f"a file of benchmarks/zero_impact.py ({error})", str(path)) from error
    if not isinstance(content, dict):
        raise InvalidInputError("--delays", "a file of benchmarks/zero_impact.py, a JSON object", str(path))
    seconds, jobs = (_number(path, content, key) for key in (_START_KEY, _JOBS_KEY))
    return MeasuredDelay(
        seconds,
        "later than without MalleTrain, at most, 99 of 100 main jobs started",
        f"{jobs:,.0f} main jobs of a test with Slurm, {path.name}",
    )


def release_delay(journal: Journal, begin_unix: float, end_unix: float) -> MeasuredDelay | None:
    """How long nodes that were taken back were not free, from the past of an installation.

    Args:
        journal: The past.
        begin_unix: Begin of the time that counts, in seconds since the epoch.
        end_unix: Its end.

    Returns:
        The delay; None if no node was taken back.
    """
    seconds = sorted(_releases(journal, begin_unix, end_unix))
    if not seconds:
        return None
    worst = seconds[math.ceil(0.99 * len(seconds)) - 1]
    return MeasuredDelay(
        worst,
        "until nodes that were taken back were free, in 99 of 100 cases at most",
        f"{len(seconds):,} releases in the journal of this installation",
    )


def _releases(journal: Journal, begin_unix: float, end_unix: float) -> Iterable[float]:
    for job in journal.jobs:
        for event in job.events:
            if event.release_seconds > 0 and begin_unix <= event.unix_seconds <= end_unix:
                yield event.release_seconds


def _number(path: Path, content: dict[str, object], key: str) -> float:
    number = finite(content.get(key))
    if number is None or (key == _JOBS_KEY and number < 0):
        raise InvalidInputError(
            f"--delays {path.name}: {key}", "a number, as benchmarks/zero_impact.py writes it", content.get(key)
        )
    return number
