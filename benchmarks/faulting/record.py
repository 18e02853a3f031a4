"""The file of trials, one JSON line each, and the table of what is in it."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trial:
    """One fault.

    Attributes:
        fault: Its name.
        went_on: Whether the job trained at its commanded scale again.
        restarts: How often its supervisor had to be started again for that, as JobManager does.
        lost_batches: Batches done in vain.
        stalled_s: Rank 0's longest pause between two batches, in seconds.
        processes_left: Processes of the job where it has no business.
        at: When, in seconds since the epoch.
        load: The machine's load average.
        message: Why it did not go on.
    """

    fault: str
    went_on: bool
    restarts: int
    lost_batches: float
    stalled_s: float
    processes_left: int
    at: float
    load: float
    message: str


def append(path: Path, trial: Trial) -> None:
    """Add a trial in one write, so that several runs may share a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(asdict(trial)) + "\n").encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Trial]:
    """All trials in the file; none where there is no file.

    Raises:
        ValueError: a line is no trial; it is named.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(Trial(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number}: expected a trial, got {line[:80]!r}") from error
    return found


def least_tried(trials: Iterable[Trial], faults: Sequence[str], repeats: int) -> str | None:
    """The first of the faults that were tried least; None once all were tried often enough."""
    counts = dict.fromkeys(faults, 0)
    for trial in trials:
        if trial.fault in counts:
            counts[trial.fault] += 1
    fault = min(counts, key=lambda name: counts[name])
    return fault if counts[fault] < repeats else None


def summary(trials: Sequence[Trial], fault: str) -> dict[str, object] | None:
    """Figures of one fault; None where it was never tried."""
    found = [trial for trial in trials if trial.fault == fault]
    if not found:
        return None
    lost, stalled = [trial.lost_batches for trial in found], [trial.stalled_s for trial in found]
    return {
        "fault": fault,
        "times": len(found),
        "went_on": sum(trial.went_on for trial in found),
        "restarted": sum(trial.restarts > 0 for trial in found),
        "lost_batches_median": statistics.median(lost),
        "lost_batches_max": max(lost),
        "stalled_s_median": round(statistics.median(stalled), 2),
        "stalled_s_max": round(max(stalled), 2),
        "processes_left": sum(trial.processes_left for trial in found),
    }


def table(summaries: Iterable[dict[str, object]]) -> str:
    """The summaries in Markdown."""
    lines = [
        "| fault | times | went on | of these started again | batches lost, median (most) "
        "| stalled in s, median (most) | processes left |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in summaries:
        cells = (
            "{fault}",
            "{times}",
            "{went_on}",
            "{restarted}",
            "{lost_batches_median:g} ({lost_batches_max:g})",
            "{stalled_s_median:.2f} ({stalled_s_max:.2f})",
            "{processes_left}",
        )
        lines.append("| " + " | ".join(cells).format(**entry) + " |")
    return "\n".join(lines)
