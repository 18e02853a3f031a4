"""The soak test: a day of idle nodes in ten minutes, with faults: `python benchmarks/soak.py [--minutes 10]`.

Run from the repository's root. Five real services follow the nodes of Summit's log (`--trace`, or one that is drawn);
jobs arrive; services, supervisors and agents are killed and stopped, the disk is full or slow, the clock is stepped,
the schedulers answer garbage or nothing. Everything is watched from outside. `--out` gets `soak.html` and `soak.json`.
Exits with 1 if anything was lost or is where it should not be. `docs/soak.md` says how to read the report. Linux only;
faults of the disk need root, and those of the clock a C compiler: they are left out without.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.soaking.fault_plan import FaultKind
from benchmarks.soaking.machine import SteppedClock, stepped_clock
from benchmarks.soaking.report import summarise, write_report
from benchmarks.soaking.running import SoakOptions, run
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace

ROOT = Path(__file__).parent.parent
TRACE = Path(os.environ.get("MALLETRAIN_SHARED", ROOT.parent / "shared")) / "traces/summit-2021-02-week1.csv.gz"
_FOLDER = "MALLETRAIN_SOAK_FOLDER"
_DAY_S, _START_S, _NODES, _SPEED = 86_400.0, 30 * 3600.0, 1024, 144.0
_IDLE_FRACTION = 0.08


def idle_nodes(path: Path, seconds: float, seed: int) -> tuple[Trace, str]:
    """The nodes of the run: an excerpt of the log, or one that is drawn where there is no log; and which it is."""
    if path.exists():
        whole = read_trace(path)
        start = min(_START_S, max(0.0, whole.duration_s - seconds))
        nodes = min(_NODES, len(whole.nodes))
        return window(whole, start, min(seconds, whole.duration_s), nodes), path.name.partition(".")[0]
    return generate(_NODES, max(seconds, 3600.0), _IDLE_FRACTION, random.Random(seed)), "drawn"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the disturbed part (10)")
    parser.add_argument("--jobs", type=positive, default=40, help="how many jobs arrive (40)")
    parser.add_argument("--seed", type=int, default=1, help="seed of faults, jobs and nodes (1)")
    parser.add_argument("--gap", type=float, default=8.0, help="mean seconds between two faults (8)")
    parser.add_argument("--only", action="append", metavar="FAULT", help="part of a fault's name; may be repeated")
    parser.add_argument("--trace", type=Path, default=TRACE, help="idle nodes; one is drawn where the file is missing")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak", help="folder of the report (build/soak)")
    parser.add_argument("--keep", action="store_true", help="copy logs of the run there, too")
    options = parser.parse_args()
    if not 0.2 <= options.minutes <= 24 * 60 or not options.gap > 0:
        parser.error("--minutes: expected 0.2 to 1440; --gap: expected above 0")
    options.kinds = [kind for kind in FaultKind if not options.only or any(part in kind for part in options.only)]
    if not options.kinds:
        parser.error(f"--only: expected part of one of {[kind.value for kind in FaultKind]}")
    return _run(options) if _FOLDER in os.environ else _prepare()


def _prepare() -> int:
    """Start this program again, with the clock that can be stepped from the start of all its processes."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        clock = stepped_clock(folder)
        more = dict(clock.environment) if isinstance(clock, SteppedClock) else {}
        return os.spawnve(
            os.P_WAIT, sys.executable, [sys.executable, *sys.argv], {**os.environ, **more, _FOLDER: str(folder)}
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(options: argparse.Namespace) -> int:
    folder = Path(os.environ.pop(_FOLDER))
    wanted = SoakOptions(
        60 * options.minutes, options.jobs, options.seed, options.gap, _SPEED, frozenset(options.kinds)
    )
    trace, name = idle_nodes(options.trace, wanted.seconds * _SPEED, options.seed)
    soaked = run(folder, trace, stepped_clock(folder), wanted, options.out if options.keep else None)
    summary = summarise(soaked, name, len(trace.nodes))
    write_report(summary, soaked.seen, options.out)
    print(summary.text)
    return 0 if summary.good else 1


if __name__ == "__main__":
    sys.exit(main())
