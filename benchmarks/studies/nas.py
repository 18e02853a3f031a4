"""FreeTrain and MalleTrain on real trainings: `python benchmarks/studies/nas.py [--seconds 240]`.

Run from the repository's root. Eight virtual nodes come and go as in a synthetic trace; the real services train
architectures drawn from NAS-Bench-101's space on random images, for a fixed time, one system after the other:

    FreeTrain, linear guesses   users declare linear curves, which are used as they are
    MalleTrain                  no declared curves; profiles where no curve is known
    MalleTrain, no profiles     no declared curves; they are learned from ordinary running

All get the same trace, architectures, seeds and order of submission; a further repeat takes the next seed, and begins
with the next system. Writes `build/nas.json`, which `malletrain reproduce malletrain --real FILE` shows, and prints
tables; `docs/profiling.md` has the figures.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.arguments import positive
from benchmarks.rescaling.processes import interrupt_once
from benchmarks.studies.nas_trial.trial import SYSTEMS, NasTrial, run_trial
from benchmarks.studies.nas_trial.workload import NODES, TRACE_SECONDS, pace_in_words, trainings
from malletrain.reproduce.malletrain.real import HEADS, RealEvaluation, RealRun, rows_of, text_of
from malletrain.reproduce.malletrain.systems import System

FILE = Path(__file__).parents[2] / "build" / "nas.json"


def main() -> int:
    options = _options()
    interrupt_once()
    runs: list[RealRun] = []
    try:
        for repeat in range(options.repeats):
            for system in [*SYSTEMS[repeat % len(SYSTEMS) :], *SYSTEMS[: repeat % len(SYSTEMS)]]:
                runs.append(_run(system, options.seed + repeat, options))
    except KeyboardInterrupt:
        return 130
    evaluation = RealEvaluation(
        machine=machine_in_words(),
        pace=pace_in_words(),
        nodes=NODES,
        seconds=options.seconds,
        trace_seconds=TRACE_SECONDS,
        max_parallel=options.max_parallel,
        job_samples=options.job_samples,
        runs=tuple(runs),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text_of(evaluation), encoding="utf-8")
    print(table(HEADS, rows_of(evaluation)))
    for seed in sorted({run.seed for run in runs}):
        print(f"\nseed {seed}: samples of each job\n\n{_jobs([run for run in runs if run.seed == seed])}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=240, help="wall time of each run (240)")
    parser.add_argument("--repeats", type=positive, default=1, help="seeds (1)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them, at least 0 (0)")
    parser.add_argument("--jobs", type=positive, default=24, help="trainings that are submitted (24)")
    parser.add_argument("--job-samples", type=positive, default=20_000, help="samples of each (20000)")
    parser.add_argument("--max-parallel", type=positive, default=4, help="most of them at once (4)")
    parser.add_argument("--out", "--json", type=Path, default=FILE, help="build/nas.json")
    parser.add_argument("--folder", type=Path, help="keep all logs there; it must not exist")
    found = parser.parse_args()
    if found.seed < 0:
        parser.error(f"--seed: expected at least 0, got {found.seed}")
    if found.folder is not None and found.folder.exists():
        parser.error(f"--folder: expected one that does not exist, got {found.folder}")
    return found


def _run(system: System, seed: int, options: argparse.Namespace) -> RealRun:
    work = tuple(trainings(options.jobs, seed))
    trial = NasTrial(system, seed, work, options.job_samples, float(options.seconds), options.max_parallel)
    print(f"seed {seed}, {system}: {options.seconds} s", file=sys.stderr, flush=True)
    if options.folder is not None:
        run = run_trial(trial, options.folder.absolute() / f"{seed}-{system.name.lower()}")
    else:
        with tempfile.TemporaryDirectory(prefix="nas-") as scratch:
            run = run_trial(trial, Path(scratch).resolve() / "run")
    print(f"  {run.samples} samples, {run.rescales} rescales, {run.profiles} profiles", file=sys.stderr, flush=True)
    return run


def _jobs(runs: Sequence[RealRun]) -> str:
    names = list(dict.fromkeys(job.name for run in runs for job in run.jobs))
    samples = [{job.name: job.samples for job in run.jobs} for run in runs]
    rows = [(name, *(found.get(name) for found in samples)) for name in names]
    return table(("job", *(run.system.value for run in runs)), rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown; None becomes an empty cell."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines)


def machine_in_words() -> str:
    """The machine for reports: cores, processor, memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, no GPU"


if __name__ == "__main__":
    sys.exit(main())
