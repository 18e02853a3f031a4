"""How the control loop grows: `python benchmarks/control_loop_sweep.py RUNS.jsonl [--plots FOLDER]`.

Runs `benchmarks/control_loop.py` at 10, 100 and 1,000 jobs with 100, 1,000 and 10,000 nodes, and with 1 and 20 events a
second; sizes with fewer nodes than jobs are left out. Each run is a line of the file. What the file has already is not
run again, so that a sweep which was interrupted goes on. A run that fails is told on standard error and tried again the
next time. The plots show how each figure grows with the jobs, a line for each number of nodes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from malletrain.common.files import write_atomically
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import Series, lines

_PROGRAM = Path(__file__).with_name("control_loop.py")
_JOBS, _NODES, _EVENTS = (10, 100, 1000), (100, 1000, 10_000), (1.0, 20.0)
Size = tuple[int, int, float]
"""Jobs, nodes, events a second."""

FIGURES: dict[str, tuple[str, Callable[[dict[str, Any]], float | None]]] = {
    "release-p99": ("leave to release, p99 in ms", lambda run: run["leave_to_release"].get("p99_ms")),
    "release-median": ("leave to release, median in ms", lambda run: run["leave_to_release"].get("median_ms")),
    "join-p99": ("join to command, p99 in ms", lambda run: run["join_to_command"].get("p99_ms")),
    "join-median": ("join to command, median in ms", lambda run: run["join_to_command"].get("median_ms")),
    "refused": ("refused plans in percent", lambda run: _refused_percent(run["plans"])),
    "cores": ("CPU of all services in cores", lambda run: sum(run["cores"].values())),
    "memory": ("memory (PSS) of all services in MiB", lambda run: sum(run["pss_mib"].values())),
}
"""By name of the file: the axis, and the figure of a run; None where it has none."""


def _refused_percent(plans: dict[str, Any]) -> float | None:
    count = plans["applied"] + plans["refused"]
    return 100.0 * plans["refused"] / count if count else None


def size_of(run: dict[str, Any]) -> Size:
    """The size of a run."""
    return run["jobs"], run["nodes"], float(run["events_per_second"])


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The runs of a file, one of each size; the last line may have been cut off.

    Raises:
        ValueError: another line is no JSON.
    """
    found: dict[Size, dict[str, Any]] = {}
    texts = path.read_text().splitlines() if path.exists() else []
    for number, text in enumerate(texts, start=1):
        try:
            run = json.loads(text)
        except json.JSONDecodeError as error:
            if number == len(texts):
                break
            raise ValueError(f"{path}, line {number}: expected a run as JSON: {error}") from error
        found[size_of(run)] = run
    return list(found.values())


def series(runs: Sequence[dict[str, Any]], figure: Callable[[dict[str, Any]], float | None], events: float) -> Series:
    """A line for each number of nodes: the figure by the number of jobs."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for run in sorted(runs, key=lambda run: (run["nodes"], run["jobs"])):
        value = figure(run)
        if run["events_per_second"] == events and value is not None:
            places, values = found.setdefault(f"{run['nodes']:,} nodes", ([], []))
            places.append(run["jobs"])
            values.append(value)
    return found


def draw(runs: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """A plot of each figure for each rate of events that there are runs of."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for events, (name, (axis, figure)) in itertools.product(
        sorted({run["events_per_second"] for run in runs}), FIGURES.items()
    ):
        if found := series(runs, figure, events):
            chart = lines(f"{axis}, {events:g} events a second", Axis("jobs", log=True), axis, found)
            made.append(folder / f"{name}-{events:g}.png")
            made[-1].write_bytes(chart.png())
    return made


def measure(size: Size, seconds: int) -> dict[str, Any] | None:
    """One run; None if it failed, which is told. A missed goal is no failure."""
    jobs, nodes, events = size
    options = ("--jobs", jobs, "--nodes", nodes, "--events", events, "--seconds", seconds)
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), *map(str, options)], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        run: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(f"{jobs} jobs, {nodes} nodes, {events:g} events/s: exit status {done.returncode}", file=sys.stderr)
        return None
    return run


def main() -> None:
    """Run what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="file of the runs, a line each")
    parser.add_argument("--jobs", type=positive, nargs="+", default=_JOBS)
    parser.add_argument("--nodes", type=positive, nargs="+", default=_NODES)
    parser.add_argument("--events", type=float, nargs="+", default=_EVENTS)
    parser.add_argument("--seconds", type=positive, default=240, help="how long each run is measured")
    parser.add_argument("--plots", type=Path, help="folder of the plots")
    options = parser.parse_args()
    known = read_runs(options.runs)
    sizes = [size for size in itertools.product(options.jobs, options.nodes, options.events) if size[0] <= size[1]]
    missing = [size for size in sizes if size not in {size_of(run) for run in known}]
    options.runs.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.runs, "".join(json.dumps(run) + "\n" for run in known))
    failed = 0
    for number, size in enumerate(missing, start=1):
        print(f"run {number} of {len(missing)}: {size[0]} jobs, {size[1]} nodes, {size[2]:g} events/s", file=sys.stderr)
        run = measure(size, options.seconds)
        if run is None:
            failed += 1
            continue
        known.append(run)
        with options.runs.open("a") as file:
            file.write(json.dumps(run) + "\n")
    if options.plots is not None:
        print("\n".join(map(str, draw(known, options.plots))))
    if failed:
        sys.exit(f"{failed} of {len(missing)} runs failed")


if __name__ == "__main__":
    main()
