"""Counts queries to Slurm: scripts that record each call come before its commands in PATH."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmarks.impact.figures import max_in_window

_COMMANDS = ("sinfo", "squeue", "scontrol", "sbatch", "scancel")
_QUERIES = {
    "-o %T|%N": "nodes",
    "%i|%S|%Y": "queue",
    "%i|%T|%N|%n|%k|%r": "placeholders",
    "reservations": "reservations",
}
"""Kinds of queries, by a part of their arguments."""
_CHECK_SECONDS = 1.0
_SLACK = 0.1
"""By this share of an interval, calls may be closer: processes start late on a loaded machine."""


def write_wrappers(folder: Path, log: Path) -> None:
    """Write scripts with the names of Slurm's commands, which record time and arguments in `log`.

    Raises:
        RuntimeError: a command is not installed.
    """
    folder.mkdir(parents=True)
    for name in _COMMANDS:
        real = shutil.which(name)
        if real is None:
            raise RuntimeError(f"{name} is not installed")
        path = folder / name
        path.write_text(f'#!/bin/bash\nLC_ALL=C\necho "$EPOCHREALTIME {name} $*" >>{log}\nexec {real} "$@"\n')
        path.chmod(0o755)


def read_calls(log: Path) -> list[tuple[float, str]]:
    """Time and kind of each call. The list of placeholders is asked for once more before some are cancelled."""
    found: list[tuple[float, str]] = []
    for line in log.read_text().splitlines():
        time, _, words = line.partition(" ")
        kind = next((kind for part, kind in _QUERIES.items() if part in words), words.split()[0])
        if kind == "scancel" and "--me" in words:
            _mark_check(found, float(time))
        found.append((float(time), kind))
    return found


def _mark_check(found: list[tuple[float, str]], until: float) -> None:
    """The list that was asked for just before a cancellation, perhaps with other queries in between."""
    for place in reversed(range(len(found))):
        time, kind = found[place]
        if time < until - _CHECK_SECONDS:
            return
        if kind == "placeholders":
            found[place] = time, "check"
            return


def max_per_interval(calls: list[tuple[float, str]], intervals: Mapping[str, float]) -> dict[str, int]:
    """Most calls of each kind in any interval of that kind."""
    return {
        kind: max_in_window((time for time, found in calls if found == kind), seconds * (1 - _SLACK))
        for kind, seconds in intervals.items()
    }


def count(calls: list[tuple[float, str]]) -> Counter[str]:
    """How many calls of each kind."""
    return Counter(kind for _, kind in calls)
