"""What a year's log costs to convert: `python benchmarks/conversion.py [--runs 973135] [--nodes 900] [--zone UTC]`.

Draws a dump as `sacct -D -T -P` prints it, with arrays, requeued jobs, names with pipes and line ends, and jobs whose
end was missed. Runs `malletrain trace convert` on it, and prints its processor time, its peak memory and how far its
idle share is from the drawn one. The goals: 60 s, 1 GiB, 0.1 percentage points.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.traces.describe import describe
from tests.support.accounting_year import DrawnYear, YearSpec

_COMMAND = str(Path(sysconfig.get_path("scripts")) / "malletrain")


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=positive, default=YearSpec.runs)
    parser.add_argument("--nodes", type=positive, default=YearSpec.nodes)
    parser.add_argument("--days", type=positive, default=int(YearSpec.days))
    parser.add_argument("--zone", default="UTC", help="zone of the times in the log")
    parser.add_argument("--tell", action="store_true", help="tell the command the zone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    spec = YearSpec(options.nodes, options.days, options.runs, zone=options.zone)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measured(spec, Path(folder), options.zone if options.tell else None), indent=2))


def _measured(spec: YearSpec, folder: Path, zone: str | None) -> dict[str, object]:
    log, out = folder / "jobs.txt", folder / "site.csv.gz"
    year = DrawnYear(spec)
    with log.open("w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(year.lines())
    command = [_COMMAND, "trace", "convert", "--from", "sacct", str(log), "--out", str(out)]
    begin = time.monotonic()
    process = os.posix_spawn(command[0], [*command, *(["--zone", zone] if zone else [])], os.environ)
    _, status, usage = os.wait4(process, 0)
    wall_s = time.monotonic() - begin
    if status:
        sys.exit(f"the conversion failed: status {os.waitstatus_to_exitcode(status)}")
    found = describe(read_trace(out)).idle_ratio
    return {
        "rows": year.rows,
        "runs": year.runs,
        "log_mib": round(log.stat().st_size / 1024**2, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "wall_s": round(wall_s, 1),
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
        "idle_share": year.idle_share,
        "found_idle_share": found,
        "difference_percentage_points": 100 * (found - year.idle_share),
    }


if __name__ == "__main__":
    main()
