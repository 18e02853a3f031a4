"""Time to train a real ensemble: `python benchmarks/studies/ensemble_training.py [--variants fleet,list] [--json]`.

Run from the repository's root. Six small CNNs with emulated accelerators train on pictures that are costly to prepare,
on two virtual nodes of two GPUs with a feed each, with the five real services; the whole ensemble once in each way:

    fleet, makespan, list, milp, auto   that planner, with the feed
    no-feed, list-no-feed               `auto` and `list`; each member has a DataLoader of its own
    tensorsocket, list-tensorsocket     the same; samples from TensorSocket (pip install tensorsocket)

All have the same members, seeds and numbers of samples. A member makes the same steps on any number of GPUs, so that
test losses say whether one has learned less. Time counts from the submission to the end of the last member. Runs that
were done apart (`--json > FILE`) are shown beside others with `--earlier FILE`, which may be repeated. With `--scarce`
four members train on pictures that cost four times as much, so that they ask for more than all cores prepare.

A way that takes longer than `--seconds` is given up, and no way is begun that can't end within `--budget` seconds in
all; the table says so. Exits with 1 if one was not run for another reason than that it is not installed, if a goal was
missed, or if processes were left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy

from benchmarks.arguments import positive
from benchmarks.feeding.pictures import costly
from benchmarks.rescaling.processes import interrupt_once
from benchmarks.studies.ensembles.networks import (
    GPUS,
    KEPT,
    NETWORKS,
    SCARCE_MEMBERS,
    SCARCE_SIDE,
    SIDE,
    SIZE,
    Network,
    problem,
)
from benchmarks.studies.ensembles.results import EnsembleRun, goals, summaries, table_of_members, table_of_variants
from benchmarks.studies.ensembles.trial import WAYS, EnsembleTrial, run_trial
from benchmarks.studies.nas import machine_in_words
from malletrain.fleet.lower_bound import lower_bound

_USUAL = ("no-feed", "list", "auto", "tensorsocket", "fleet", "makespan", "milp")
"""Variants that are run where none are asked for, those first that others are compared with."""
_USUAL_SCARCE = ("auto", "no-feed", "tensorsocket", "list")
_BUDGET, _BUDGET_SCARCE = 700, 350
_MIN_SECONDS = 40.0
"""No training of the ensemble is begun with less time than this."""
_NOT_INSTALLED = "not installed"
_STARTING_SECONDS = 30.0
"""What services and imports take before a training of the ensemble, and the end of its processes after it."""
_TESTED = 200
_PREPARED = 80


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Attributes:
        preprocess_rates: Samples per second that all cores together prepare, by call of this program.
        runs: Trainings of the ensemble.
        missing: Variants that were not run, with the reason.
    """

    preprocess_rates: tuple[float, ...]
    runs: tuple[EnsembleRun, ...]
    missing: dict[str, str]


def main() -> int:
    options = _options()
    interrupt_once()
    networks = NETWORKS[: options.members]
    parts = [_earlier(path, options.members) for path in options.earlier]
    parts += [_measured(networks, options)] if options.variants else []
    found = Evaluation(
        tuple(rate for part in parts for rate in part.preprocess_rates),
        tuple(run for part in parts for run in part.runs),
        {variant: why for part in parts for variant, why in part.missing.items()},
    )
    bound = lower_bound(problem(networks, 0.0))
    missed = [goal for goal in goals(summaries(found.runs, bound)) if not goal.met]
    if options.json:
        print(json.dumps(_described(bound) | asdict(found)))
    else:
        _print(found, bound, networks)
    failed = any(why != _NOT_INSTALLED for why in found.missing.values())
    return 1 if missed or failed or any(run.left for run in found.runs) else 0


def _measured(networks: tuple[Network, ...], options: argparse.Namespace) -> Evaluation:
    deadline = time.monotonic() + options.budget
    missing = {variant: _NOT_INSTALLED for variant in options.variants if not WAYS[variant].possible}
    cores = len(os.sched_getaffinity(0))
    runs: list[EnsembleRun] = []
    with tempfile.TemporaryDirectory(prefix="ensemble-") as scratch:
        folder = options.folder.absolute() if options.folder else Path(scratch).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        _write_test(folder / "test.npz", options.side)
        rate = round(preparing_rate(cores, options.side), 1)
        trial = EnsembleTrial(networks, rate, cores, options.kept, options.side, folder / "test.npz", options.seconds)
        for repeat in range(options.repeats):
            for variant in (variant for variant in options.variants if variant not in missing):
                seconds = min(options.seconds, deadline - time.monotonic() - _STARTING_SECONDS)
                if seconds < _MIN_SECONDS:
                    missing[variant] = f"not run: {options.budget} s were over"
                    continue
                try:
                    runs.append(_run(replace(trial, max_seconds=seconds), variant, folder / f"{variant}-{repeat}"))
                except TimeoutError as error:
                    missing[variant] = f"given up after {seconds:.0f} s"
                    print(f"{variant}: {error}", file=sys.stderr, flush=True)
                except (AssertionError, RuntimeError) as error:
                    missing[variant] = "failed"
                    print(f"{variant}: {error}", file=sys.stderr, flush=True)
    runs.sort(key=lambda run: list(WAYS).index(run.variant))
    return Evaluation((rate,), tuple(runs), missing)


def _run(trial: EnsembleTrial, variant: str, folder: Path) -> EnsembleRun:
    run = run_trial(trial, variant, folder)
    words = f"{run.seconds:.1f} s, by {', '.join(run.planners)}, {run.prepared} samples prepared"
    print(f"{variant}: {words}", file=sys.stderr, flush=True)
    return run


def _described(bound: float) -> dict[str, Any]:
    """When and where this was measured."""
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return {"date": now, "machine": machine_in_words(), "lower_bound_seconds": bound}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = f"separated by commas; none: --variants= ({','.join(_USUAL)}; --scarce: {','.join(_USUAL_SCARCE)})"
    parser.add_argument("--variants", type=_variants, help=words)
    parser.add_argument("--members", type=positive, choices=range(1, len(NETWORKS) + 1), help=f"({len(NETWORKS)})")
    parser.add_argument("--side", type=positive, help=f"pixels of pictures: the cost of one ({SIDE})")
    words = f"preparing is the bottleneck: {SCARCE_MEMBERS} members, pictures of {SCARCE_SIDE} pixels"
    parser.add_argument("--scarce", action="store_true", help=words)
    parser.add_argument("--kept", type=positive, default=KEPT, help=f"samples that a feed keeps ({KEPT})")
    parser.add_argument("--repeats", type=positive, default=1, help="of each variant (1)")
    parser.add_argument("--seconds", type=positive, default=120, help="how long one may take (120)")
    words = f"how long all may take ({_BUDGET}; --scarce: {_BUDGET_SCARCE})"
    parser.add_argument("--budget", type=positive, help=words)
    parser.add_argument("--earlier", type=Path, action="append", default=[], help="JSON of runs that were done apart")
    parser.add_argument("--folder", type=Path, help="keep all logs there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    options.members = options.members or (SCARCE_MEMBERS if options.scarce else len(NETWORKS))
    usual, budget = (_USUAL_SCARCE, _BUDGET_SCARCE) if options.scarce else (_USUAL, _BUDGET)
    options.variants = usual if options.variants is None else options.variants
    options.budget = options.budget or budget
    options.side = options.side or (SCARCE_SIDE if options.scarce else SIDE)
    return options


def _variants(text: str) -> list[str]:
    names = text.split(",") if text else []
    for name in names:
        if name not in WAYS:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(WAYS)}, got {name!r}")
    return names


def _earlier(path: Path, members: int) -> Evaluation:
    content = json.loads(path.read_text())
    runs = tuple(EnsembleRun.of(each) for each in content["runs"])
    if any(len(run.members) != members for run in runs):
        raise SystemExit(f"{path}: expected runs with {members} members")
    return Evaluation(tuple(content["preprocess_rates"]), runs, content["missing"])


def _write_test(path: Path, side: int) -> None:
    """Pictures that no member trains on: the same in every run."""
    state = numpy.random.get_state()
    numpy.random.seed(12345)
    dataset = costly(_TESTED, os.devnull, side)
    pictures, labels = zip(*(dataset[index] for index in range(_TESTED)), strict=True)
    numpy.random.set_state(state)
    numpy.savez(path, pictures=numpy.stack(pictures), labels=numpy.array(labels))


def preparing_rate(cores: int, side: int) -> float:
    """Samples per second that all cores together prepare while they do nothing else."""
    pool = multiprocessing.Pool(cores)
    rates = pool.map(_prepare, [side] * cores, chunksize=1)
    pool.close()
    pool.join()
    return sum(rates)


def _prepare(side: int) -> float:
    dataset = costly(SIZE, os.devnull, side)
    seconds = []
    for index in range(_PREPARED):
        began = time.perf_counter()
        dataset[index]
        seconds.append(time.perf_counter() - began)
    return 1 / statistics.median(seconds)


def _print(found: Evaluation, bound: float, networks: tuple[Network, ...]) -> None:
    asked = sum(sorted((one.rates[0] for one in networks), reverse=True)[:GPUS])
    rate = statistics.median(found.preprocess_rates)
    print(f"{machine_in_words()}; all cores together prepare {rate:.0f} samples/s.")
    print(f"{min(GPUS, len(networks))} members on one GPU each ask for up to {asked:.0f} samples/s.")
    print(f"No schedule takes less than {bound:.1f} s with the declared rates.\n")
    lines = summaries(found.runs, bound)
    print(table_of_variants(lines, found.missing))
    print(f"\n{table_of_members(found.runs)}\n" if found.runs else "")
    print("\n".join(f"{'met' if goal.met else 'MISSED'}: {goal.words}" for goal in goals(lines)))
    print(f"processes left at the end: {sum(run.left for run in found.runs)}")


if __name__ == "__main__":
    sys.exit(main())
