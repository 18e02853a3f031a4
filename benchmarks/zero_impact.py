"""Does the main queue notice? `python benchmarks/zero_impact.py [--nodes 16] [--minutes 4] [--seed 1]`.

Run from the repository's root. A seeded stream of main jobs of mixed sizes and lengths goes through a real Slurm on
this machine three times: without us, with trainings on whatever is idle, and so again while Allocator is stopped half
of the time. Placeholders hold the nodes, or with `--direct` nothing does: agents are started by ssh, and a Prolog ends
them. Writes `build/zero-impact.json` and prints tables; `docs/zero-impact.md` says what the figures mean. Exits
with 1 if a process or placeholder of ours is left.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.impact.figures import Ran, percentile, plain_deltas, start_deltas
from benchmarks.impact.harvest import INTERVALS_S, write_prolog
from benchmarks.impact.rounds import Round, run_stream, run_with_us
from benchmarks.impact.stream import make_stream
from benchmarks.rescaling.processes import interrupt_once
from tests.scavenger.acquisition.secure_shell import SSHD, ssh_command
from tests.slurm.cluster import cluster, missing

FILE = Path(__file__).parent.parent / "build" / "zero-impact.json"
NO_SSHD = "--direct needs sshd: apt install openssh-server"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16, help="slurmd on this machine (16)")
    parser.add_argument("--minutes", type=float, default=4.0, help="during which main jobs are submitted (4)")
    parser.add_argument("--seed", type=int, default=1, help="of the stream (1)")
    parser.add_argument("--trainings", type=int, default=2, help="of at most two nodes each (2)")
    parser.add_argument("--idle-seconds", type=float, default=20.0, help="to measure CPU without trainings (20)")
    parser.add_argument("--twice", action="store_true", help="without us twice: how much Slurm differs from itself")
    parser.add_argument("--direct", action="store_true", help="watched nodes, ssh and a Prolog; no placeholders")
    parser.add_argument("--folder", type=Path, help="keep all logs there; it must not exist")
    parser.add_argument("--file", type=Path, default=FILE, help="build/zero-impact.json")
    options = parser.parse_args()
    if reason := missing() or (NO_SSHD if options.direct and SSHD is None else ""):
        print(reason, file=sys.stderr)
        return 2
    interrupt_once()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="zero-impact-"))
    try:
        without, with_us, stopped, again = _measure(options, folder.absolute())
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    summary = _summary(options.nodes, without, with_us, stopped)
    options.file.parent.mkdir(exist_ok=True)
    options.file.write_text(json.dumps(summary, indent=2) + "\n")
    _show(options.nodes, without, {"with us": with_us, "Allocator stopped": stopped}, again)
    print(json.dumps(summary, indent=2))
    return 1 if summary["processes_left"] else 0


def _measure(options: argparse.Namespace, folder: Path) -> tuple[tuple[Ran, ...], Round, Round, tuple[Ran, ...] | None]:
    stream = make_stream(options.nodes, options.minutes, options.seed)
    print(f"{len(stream)} main jobs on {options.nodes} nodes, three times", file=sys.stderr)
    with cluster(folder / "slurm", options.nodes) as slurm:
        without = run_stream(slurm, stream, folder / "without")
        again = run_stream(slurm, stream, folder / "again") if options.twice else None
    print("done without us", file=sys.stderr)
    with ExitStack() as stack:
        ssh = stack.enter_context(ssh_command(folder / "ssh")) if options.direct else ()
        prolog = write_prolog(folder / "slurm-with") if options.direct else None
        slurm = stack.enter_context(cluster(folder / "slurm-with", options.nodes, prolog))
        with_us = run_with_us(slurm, stream, folder / "with", options.trainings, options.idle_seconds, ssh=ssh)
        print("done with us", file=sys.stderr)
        stopped = run_with_us(slurm, stream, folder / "stopped", options.trainings, stop_allocator=True, ssh=ssh)
    return without, with_us, stopped, again


def _summary(nodes: int, without: Sequence[Ran], with_us: Round, stopped: Round) -> dict[str, float | int | None]:
    return {
        "main_jobs": len(with_us.jobs),
        "start_delta_p99_s": _rounded(start_deltas(without, with_us.jobs, nodes), 0.99),
        "reclaim_p99_s": _rounded([entry.seconds for entry in with_us.reclaims], 0.99),
        "reclaim_p99_s_allocator_stopped": _rounded([e.seconds for e in stopped.reclaims if e.stopped], 0.99),
        "queries_per_interval_max": max(*with_us.queries.values(), *stopped.queries.values()),
        "idle_cpu_fraction": round(with_us.idle_cpu or 0.0, 4),
        "processes_left": with_us.left + stopped.left,
        "samples_harvested": with_us.samples,
        "shared_node_seconds": round(with_us.shared + stopped.shared, 2),
    }


def _show(nodes: int, without: Sequence[Ran], rounds: dict[str, Round], again: Sequence[Ran] | None) -> None:
    print("| in seconds | n | median | 90th | 99th | most |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    if again is not None:
        _row("without us again: start later, of its own", start_deltas(without, again, nodes))
        _row("without us again: start later, with those before it", plain_deltas(without, again))
    for name, found in rounds.items():
        _row(f"{name}: start later, of its own", start_deltas(without, found.jobs, nodes))
        _row(f"{name}: start later, with those before it", plain_deltas(without, found.jobs))
        _row(f"{name}: reclaim of a node with workers", [e.seconds for e in found.reclaims if e.working])
        _row(f"{name}: reclaim of a node without", [e.seconds for e in found.reclaims if not e.working])
        _row(f"{name}: reclaim while stopped", [e.seconds for e in found.reclaims if e.stopped])
    for name, found in rounds.items():
        print(f"\n{name}: {found.samples} samples; most queries in {INTERVALS_S} s: {found.queries}")
        print(f"calls: {dict(found.calls)}; left: {found.left}; shared: {found.shared:.2f} node-seconds")


def _row(label: str, values: Sequence[float]) -> None:
    cells = [_rounded(values, share) for share in (0.5, 0.9, 0.99, 1.0)]
    print(f"| {label} | {len(values)} | " + " | ".join("" if c is None else f"{c:.2f}" for c in cells) + " |")


def _rounded(values: Sequence[float], share: float) -> float | None:
    found = percentile(values, share)
    return None if found is None else round(found, 3)


if __name__ == "__main__":
    sys.exit(main())
