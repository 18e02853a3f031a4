"""The fault matrix: real trainings, real faults, at random moments: `python benchmarks/faults.py [--repeats 20]`.

Run from the repository's root. Faults of all kinds hit jobs of three workers, again and again; what counts is whether
the job goes on, how many batches were done in vain, how long rank 0 stood still, and whether any process is left where
it has no business. Every trial is a line of `build/faults.jsonl` as soon as it is done: a run that is interrupted is
taken up where it was, several may run side by side, and the table is that of the whole file. Delete the file to begin
anew. Exits with 1 if a job did not go on or left a process. `docs/reliability.md` has the figures.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.faulting.acts import FAULTS
from benchmarks.faulting.record import Trial, append, least_tried, read, summary, table
from benchmarks.faulting.trials import STOP, run
from benchmarks.rescaling.processes import interrupt_once

FILE = Path(__file__).parent.parent / "build" / "faults.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="trials of each fault that the file shall have (20)")
    parser.add_argument("--only", action="append", metavar="FAULT", help="part of a fault's name; may be repeated")
    parser.add_argument("--file", type=Path, default=FILE, help="build/faults.jsonl")
    parser.add_argument("--seed", type=int, help="seed of moments and victims; by default another one every time")
    parser.add_argument("--table", action="store_true", help="only print the table of what is in the file")
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")
    options = parser.parse_args()
    faults = [name for name in FAULTS if not options.only or any(part in name for part in options.only)]
    if not faults:
        parser.error(f"--only: expected part of one of {list(FAULTS)}")

    def next_fault() -> str | None:
        return least_tried(read(options.file), faults, options.repeats)

    def save(trial: Trial) -> None:
        append(options.file, trial)
        how = "went on" if trial.went_on else trial.message
        print(f"{trial.fault}: {how}, {trial.lost_batches:g} batches, {trial.stalled_s:.2f} s", file=sys.stderr)

    interrupt_once()
    interrupted = False
    if not options.table:
        try:
            run(next_fault, save, options.file.with_suffix(".failed"), random.Random(options.seed))
        except KeyboardInterrupt:
            interrupted = True
    return _show(read(options.file), [*faults, STOP], options.json) or (130 if interrupted else 0)


def _show(trials: list[Trial], faults: list[str], as_json: bool) -> int:
    found = [entry for fault in faults if (entry := summary(trials, fault))]
    print(json.dumps(found, indent=2) if as_json else table(found))
    good = all(entry["went_on"] == entry["times"] and not entry["processes_left"] for entry in found)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
