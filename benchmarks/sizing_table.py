"""Tables of docs/operators/sizing.md from runs of control_loop.py: `python benchmarks/sizing_table.py RUN.json ...`.

Memory of each service is fitted as a sum: so much by itself, so much per job and per idle node. That takes at least
three runs, in which jobs and nodes do not grow in step. `make_table` and `fit` take the parsed output of the runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from malletrain.runtime.settings_file import SERVICES

_KIB = 2**10


@dataclass(frozen=True)
class Fit:
    """Memory as a sum.

    Attributes:
        base_mib: What the services need by themselves, in MiB.
        per_job_kib: What each job adds, in KiB.
        per_node_kib: What each idle node adds, in KiB.
        error_mib: The largest difference from a measurement, in MiB.
    """

    base_mib: float
    per_job_kib: float
    per_node_kib: float
    error_mib: float


def fit(runs: Sequence[dict[str, Any]], service: str) -> Fit | None:
    """Least squares over the runs; None if they can't tell jobs from nodes."""
    counts = np.array([[1.0, run["jobs"], run["nodes"]] for run in runs])
    if np.linalg.matrix_rank(counts) < counts.shape[1]:
        return None
    measured = np.array([run["pss_mib"][service] for run in runs])
    found = np.linalg.lstsq(counts, measured, rcond=None)[0]
    error = float(np.abs(counts @ found - measured).max())
    return Fit(float(found[0]), float(found[1]) * _KIB, float(found[2]) * _KIB, error)


def make_table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: a column for each run, smaller ones first."""
    ordered = sorted(runs, key=lambda run: (run["jobs"], run["nodes"]))
    lines = [
        "| | " + " | ".join(f"{run['jobs']:,} jobs, {run['nodes']:,} nodes" for run in ordered) + " |",
        "| --- |" + " ---: |" * len(ordered),
        _row("joins and leaves a second", [f"{run['node_changes'] / run['measured_s']:.1f}" for run in ordered]),
    ]
    for service in SERVICES:
        cells = [f"{run['pss_mib'][service]:.0f} MiB, {100 * run['cores'][service]:.1f} %" for run in ordered]
        lines.append(_row(service, cells))
    lines.append(_row("all five", [f"{sum(run['pss_mib'].values()):.0f} MiB" for run in ordered]))
    for name in ordered[0]["grown_bytes"]:
        cells = [f"{_per_thousand(run, name):.0f} KiB" for run in ordered]
        lines.append(_row(f"{name}, by 1,000 joins and leaves", cells))
    return lines


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def _per_thousand(run: dict[str, Any], name: str) -> float:
    """What a database grows by, in KiB by thousand joins and leaves of nodes."""
    return float(run["grown_bytes"][name]) / _KIB * 1000 / max(1, run["node_changes"])


def main() -> None:
    """Print the table, and the sums where there are enough runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="output of control_loop.py")
    runs = [json.loads(path.read_text()) for path in parser.parse_args().runs]
    print("\n".join(make_table(runs)))
    if fit(runs, SERVICES[0]) is None:
        sys.exit("no sums: that takes three runs in which jobs and nodes do not grow in step")
    print("\n| service | MiB | KiB per job | KiB per idle node | largest error, MiB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for service in SERVICES:
        if (found := fit(runs, service)) is not None:
            cells = (found.base_mib, found.per_job_kib, found.per_node_kib, found.error_mib)
            print(_row(service, [f"{cell:.1f}" for cell in cells]))


if __name__ == "__main__":
    main()
