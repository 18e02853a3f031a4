"""What many rescales do to what is learned: `python benchmarks/accuracy.py [--rescales 50]`.

Run from the repository's root. A small network trains on the digits, static (three workers) with several seeds for the
noise, and with random rescales between one and four workers. Once the global batch grows with the workers and the
learning rate with it; once it is held. Prints accuracy and loss on the test images; exits with 1 if an elastic run lies
outside of what the static ones span by more than their own spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.training.rescaling import Learned, with_horovod, with_torch

_MODES = {"rates": (), "hold": ("--hold-batch",)}
_TEST_IMAGES = 360


def run(
    folder: Path, mode: str, backend: str, samples: int, seed: int, rescales: int, step_seconds: float
) -> tuple[str, Learned]:
    """One training, and how to name it."""
    name = f"{backend if rescales else 'static'}, {mode}, seed {seed}"
    options = _MODES[mode]
    if rescales and backend == "horovod":
        # So slow that there is time for all rescales: newcomers boot while the others train on.
        paced = (*options, "--step-seconds", str(step_seconds))
        return name, with_horovod(folder, samples, seed, rescales, *paced)
    return name, with_torch(folder, samples, seed, rescales, *options)


def within_noise(value: float, static: Sequence[float], least: float) -> bool:
    """Whether a value lies within what static runs span, widened by their spread (or `least`) on both sides."""
    margin = max(max(static) - min(static), least)
    return min(static) - margin <= value <= max(static) + margin


def judge(static: Sequence[Learned], elastic: Learned) -> bool:
    """Whether rescales left accuracy (to two images) and loss within the noise."""
    accuracies, losses = [entry.accuracy for entry in static], [entry.loss for entry in static]
    fine = within_noise(elastic.accuracy, accuracies, 2 / _TEST_IMAGES)
    return fine and within_noise(elastic.loss, losses, 0.05 * statistics.mean(losses))


def main() -> int:
    """Run all, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rescales", type=int, default=50)
    parser.add_argument("--samples", type=int, default=120_000)
    parser.add_argument("--seeds", type=int, default=5, help="static runs per mode")
    parser.add_argument("--backends", nargs="+", default=["torchrun", "horovod"], choices=["torchrun", "horovod"])
    parser.add_argument("--modes", nargs="+", default=list(_MODES), choices=list(_MODES))
    parser.add_argument("--step-seconds", type=float, default=0.2, help="pace of the Horovod run")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    arguments = parser.parse_args()
    rows: dict[str, Learned] = {}
    verdicts: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for mode in arguments.modes:
            plan = [("torchrun", seed, 0) for seed in range(arguments.seeds)]
            plan += [(backend, 0, arguments.rescales) for backend in arguments.backends]
            static: list[Learned] = []
            for number, (backend, seed, rescales) in enumerate(plan):
                folder = Path(scratch) / f"{mode}-{number}"
                name, learned = run(folder, mode, backend, arguments.samples, seed, rescales, arguments.step_seconds)
                rows[name] = learned
                if not rescales:
                    static.append(learned)
                else:
                    verdicts[name] = judge(static, learned)
                if not arguments.json:
                    print(_line(name, learned, verdicts.get(name)), flush=True)
    if arguments.json:
        print(json.dumps({name: {**asdict(row), "within_noise": verdicts.get(name)} for name, row in rows.items()}))
    return 0 if all(verdicts.values()) else 1


def _line(name: str, learned: Learned, fine: bool | None) -> str:
    verdict = {None: "", True: "within the noise", False: "OUTSIDE THE NOISE"}[fine]
    return (
        f"{name:<26} rescales {learned.rescales:>3}  samples {learned.samples:>7}"
        f"  accuracy {learned.accuracy:.4f}  loss {learned.loss:.4f}  {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
