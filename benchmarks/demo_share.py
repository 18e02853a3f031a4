"""How much of the offered nodes the demo uses: `python benchmarks/demo_share.py [--runs 5]`.

Run from the repository's root. `malletrain demo` is run again and again, each time on another trace (seeds 1, 2, ..),
or with `--trace` on the same excerpt of that. Used of offered is as the demo counts it: node-seconds in which a job
trained, of those in which the trace had the nodes idle, from the first idle node until the last job has ended. What
was not used is said by cause (`malletrain.cli.demo.summary`); the causes add up to the whole difference.

Exits with 1 if a run used less than 85 %, failed, or left a process. A run takes two to four minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from malletrain.cli.demo.summary import OfferUse

GOAL = 0.85
_LOST = tuple(use.value for use in OfferUse if use is not OfferUse.TRAINING)
_LAST_WORDS = 2000

Run = Mapping[str, Any]


def run_demo(seed: int, trace: Path | None, folder: Path) -> Run:
    """Run the demo once, in a folder without a trace beside it.

    Args:
        seed: Of the trace that is generated where none is given.
        trace: The trace; None: one is generated.
        folder: For its state; must exist.

    Returns:
        What it has said about itself, with `seed` and its `exit` status.

    Raises:
        RuntimeError: it said nothing.
    """
    command = [
        *(sys.executable, "-m", "malletrain.cli.main", "demo", "--json", "--seed", str(seed)),
        *("--folder", str(folder / "state"), "--timeline", str(folder / "timeline.png")),
        *(("--trace", str(trace)) if trace else ()),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"the demo ended with {done.returncode}: {done.stderr[-_LAST_WORDS:]}") from None
    return {**said, "seed": seed, "exit": done.returncode}


def share(run: Run) -> float:
    """Used of offered node-seconds; 0 where nothing was offered."""
    offered = run["node_seconds_offered"]
    return float(run["node_seconds_used"] / offered) if offered else 0.0


def faults(run: Run) -> list[str]:
    """What is wrong with a run; empty if it met the goal."""
    found = [] if run["exit"] == 0 else [f"the demo ended with exit status {run['exit']}"]
    found += [f"left: {process}" for process in run["stray_processes"]]
    if share(run) < GOAL:
        found.append(f"used {share(run):.1%} of what was offered: expected at least {GOAL:.0%}")
    return found


def table(runs: Sequence[Run]) -> str:
    """The runs as a table: node-seconds, pauses in seconds, samples."""
    heads = ("seed", "seconds", "offered", "used", "share", *_LOST, "growth pause", "samples lost", "left")
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for run in runs:
        pause = run["scale_up_seconds_median"]
        cells = (
            *(run["seed"], f"{run['seconds']:.0f}", f"{run['node_seconds_offered']:.0f}"),
            *(f"{run['node_seconds_used']:.0f}", f"{share(run):.1%}"),
            *(f"{run['node_seconds_lost_to'][name]:.1f}" for name in _LOST),
            *("-" if pause is None else f"{pause:.2f}", run["samples_lost"], len(run["stray_processes"])),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=positive, default=5, help="how many (5)")
    parser.add_argument("--first-seed", type=int, default=1, help="seed of the first one's trace (1)")
    parser.add_argument("--trace", type=Path, help="trace to take a busy quarter of an hour from; else generated")
    parser.add_argument("--json", action="store_true", help="print what each run said about itself as one JSON list")
    options = parser.parse_args()
    trace = options.trace.absolute() if options.trace else None
    runs: list[Run] = []
    for number in range(options.runs):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="demo-share-") as folder:
            run = run_demo(options.first_seed + number, trace, Path(folder))
        runs.append(run)
        took = time.monotonic() - began
        print(f"run {number + 1} of {options.runs}: {share(run):.1%} used, {took:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(runs, indent=2) if options.json else table(runs))
    for run in runs:
        for fault in faults(run):
            print(f"seed {run['seed']}: {fault}", file=sys.stderr)
    return 1 if any(map(faults, runs)) else 0


if __name__ == "__main__":
    sys.exit(main())
