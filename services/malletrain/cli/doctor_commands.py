"""How `malletrain doctor` asks a scheduler's commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from malletrain.cli.doctor_findings import Finding, judge

_SECONDS = 20.0


@dataclass(frozen=True)
class Answer:
    """What a command printed; `ok` unless it could not be run, failed, or took too long."""

    ok: bool
    text: str
    error: str = ""


def ask(argv: Sequence[str]) -> Answer:
    """Run a command, with times in UTC and in the C locale."""
    environment = os.environ | {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(False, "", str(error))
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return Answer(done.returncode == 0, done.stdout, said[-1] if said and done.returncode else "")


def programs(names: Iterable[str], setting: str) -> Finding:
    """Whether all of these can be run."""
    missing = [name for name in names if shutil.which(name) is None]
    found = f"not found: {', '.join(missing)}" if missing else "all found"
    return judge("commands", not missing, found, f"install the scheduler's client package here, or set {setting}")


def clocks(ours: float, theirs: float | None, most_seconds: float = 5.0) -> Finding:
    """Whether the scheduler's clock goes like ours: planned starts are compared with our time."""
    if theirs is None:
        return Finding("clocks", False, "the scheduler did not say its time", "see whether its commands answer")
    apart = ours - theirs
    found = f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the scheduler"
    return judge("clocks", abs(apart) <= most_seconds, found, "run an NTP client (chrony) here and there")
