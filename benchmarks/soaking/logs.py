"""What logs tell of a run: services that ended, and tracebacks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.looping.stand_ins import COMMANDS

_END = re.compile(r"^(\w+) ended with (-?\d+); starting it again", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"


def ends(text: str) -> list[str]:
    """Services that `malletrain up` says have ended, as NAME:STATUS."""
    return [f"{name}:{status}" for name, status in _END.findall(text)]


def defects(name: str, lines: Iterable[str]) -> Iterator[str]:
    """The last line of each traceback in a log, plain or in an entry in JSON."""
    inside = False
    for line in lines:
        if _TRACEBACK in line and line.startswith("{"):
            yield f"{name}: {_of_entry(line)}"
        elif _TRACEBACK in line:
            inside = True
        elif inside and line.strip() and not line.startswith((" ", "|")):
            inside = False
            yield f"{name}: {line.strip()[:300]}"


def _of_entry(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:  # it is cut: the disk was full
        return line[-300:].strip()
    return f"{entry.get('event')}: {str(entry.get('exception', '')).strip().rpartition(chr(10))[2][:300]}"


def log_files(folder: Path, state: Path) -> list[Path]:
    """Logs of services, supervisors, agents and stand-ins."""
    patterns = ((folder, "*.log"), (folder, "schedulers/*.log"), (state, "logs/*.log"), (state, "jobs/*/*.log"))
    return [path for place, pattern in patterns for path in sorted(place.glob(pattern))]


def keep_logs(folder: Path, state: Path, place: Path) -> None:
    """Copy logs, and what supervisors were told."""
    target = place / "logs"
    target.mkdir(parents=True, exist_ok=True)
    for path in (*log_files(folder, state), *folder.glob(COMMANDS)):
        of_job = path.parent.parent.name == "jobs"
        shutil.copy(path, target / (f"{path.parent.name}-{path.name}" if of_job else path.name))
