"""What torch.compile costs at a change of scale: `python benchmarks/compile.py [--json] [--repeats 3]`.

Run from the repository's root. A small convolutional network trains under the torchrun backend's supervisor on 2, 3 and
2 workers; then all are killed, and another supervisor goes on. Measured in each worker: the seconds from the moment
when all had joined to the end of the first step, which compiles, and what the compiler found in its caches. Three
forms: the cache in the job's folder, as it is; no cache; and not compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from tests.training.compiling import STAGES, FirstStep, over_scales

FORMS: Mapping[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    "shared cache": ({}, ()),
    "no cache": ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, ()),
    "not compiled": ({}, ("--plain",)),
}


def table(found: Mapping[str, Iterable[FirstStep]]) -> str:
    """Time to the first step (of all workers), CPU time (median), hits and misses, by form and stage."""
    lines = [f"{'':14}{'':20}{'n':>4}{'median s':>10}{'worst s':>9}{'CPU s':>8}{'hits':>6}{'misses':>8}"]
    for form, steps in found.items():
        for stage in STAGES:
            same = [step for step in steps if step.stage == stage]
            seconds = [step.seconds for step in same]
            counts = (sum(step.count(what) for step in same) for what in ("hit", "miss"))
            lines.append(
                f"{form:14}{stage:20}{len(same):>4}{statistics.median(seconds):>10.2f}{max(seconds):>9.2f}"
                f"{statistics.median(step.cpu_seconds for step in same):>8.2f}"
                f"{next(counts):>6}{next(counts):>8}"
            )
    return "\n".join(lines)


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=3, help="rounds (3)")
    parser.add_argument("--only", choices=FORMS, action="append", help="measure this form alone; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    options = parser.parse_args()
    found: dict[str, list[FirstStep]] = {form: [] for form in options.only or FORMS}
    for number in range(1, options.repeats + 1):
        for form, steps in found.items():
            print(f"round {number} of {options.repeats}: {form}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="compile-") as folder:
                steps += over_scales(Path(folder), *FORMS[form])
    if options.json:
        print(json.dumps({form: [asdict(step) for step in steps] for form, steps in found.items()}))
    else:
        print(table(found))
        print(f"load average of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
