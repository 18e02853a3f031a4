"""What a feed saves: `python benchmarks/feed.py [--trainings 2,4] [--samples 1200] [--workers auto,1,2] [--json]`.

Small CNNs train side by side on a dataset that is costly to prepare: each with a DataLoader of its own, with a feed,
and with TensorSocket (pip install tensorsocket) where it is installed. Prints CPU seconds of preparation, how often
samples were prepared, and the time until the last training has ended.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TRAINER = Path(__file__).parent / "feeding" / "trainer.py"
SPEC = "benchmarks.feeding.pictures:costly"
_MAX_SECONDS = 900.0


@dataclass(frozen=True)
class FeedFigures:
    """One run.

    Attributes:
        kind: How samples came to the trainings.
        workers: Processes that prepare, of each DataLoader, feed or producer; None: the feed chooses their number.
        trainings: How many trainings.
        prepared: Samples that were prepared.
        cpu_seconds: CPU time of their preparation.
        seconds: Time until the last training had had its samples, without its start.
    """

    kind: str
    workers: int | None
    trainings: int
    prepared: int
    cpu_seconds: float
    seconds: float


def measure(kind: str, trainings: int, samples: int, size: int, workers: int | None, step: float = 0.0) -> FeedFigures:
    """Run some trainings of one kind side by side; what their feed writes is printed.

    Args:
        step: Seconds of a step on an emulated accelerator; 0: the CNN is trained.

    Raises:
        RuntimeError: one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        log = Path(folder) / "prepared"
        log.touch()
        settings = {"size": size, "samples": samples, "batch": 16, "log": str(log)}
        settings |= {"feed": SPEC if kind == "feed" else "", "workers": workers, "step": step}
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLETRAIN_FEED_FOLDER": f"{folder}/feeds"}

        def start(role: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, TRAINER, role, json.dumps(settings)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            stack.callback(_end, process)
            return process

        if kind == "tensorsocket":
            start("producer")
        processes = [start(kind) for _ in range(trainings)]
        seconds = max(_result(process)["seconds"] for process in processes)
        for path in Path(folder).glob("feeds/*.log"):
            sys.stderr.write(path.read_text())
        lines = [line.split() for line in log.read_text().splitlines()]
        return FeedFigures(kind, workers, trainings, len(lines), sum(float(cost) for _, cost in lines), seconds)


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=_MAX_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"a training ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", default="2,4", help="numbers of trainings side by side, separated by commas")
    parser.add_argument("--samples", type=int, default=1200, help="samples that each training has")
    parser.add_argument("--size", type=int, default=600, help="samples of the dataset")
    parser.add_argument(
        "--workers", default="2", help="processes that prepare, of each DataLoader and feed; auto: the feed chooses"
    )
    parser.add_argument(
        "--step", type=float, default=0.0, help="seconds of a step on an emulated accelerator; 0: train"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    kinds = ["alone", "feed"]
    if importlib.util.find_spec("tensorsocket") is not None:
        kinds.append("tensorsocket")
    numbers = [None if each == "auto" else int(each) for each in options.workers.split(",")]
    if not any(numbers):
        parser.error("--workers: expected a number beside auto, for DataLoaders")
    figures = []
    for count, workers, kind in itertools.product(map(int, options.trainings.split(",")), numbers, kinds):
        if workers is None and kind != "feed":
            continue
        started = time.monotonic()
        figures.append(measure(kind, count, options.samples, options.size, workers, options.step))
        seconds = time.monotonic() - started
        print(f"{kind}, {workers or 'auto'} workers, {count} trainings: {seconds:.0f} s", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(each) for each in figures]))
        return 0
    print("| trainings | samples come from | workers | prepared | CPU s | share of alone | time to train, s |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for each in figures:
        alone = [other for other in figures if (other.kind, other.trainings) == ("alone", each.trainings)]
        like = next((other for other in alone if other.workers == each.workers), alone[0])
        share = each.cpu_seconds / like.cpu_seconds
        row = (
            each.trainings,
            each.kind,
            each.workers or "auto",
            each.prepared,
            f"{each.cpu_seconds:.1f}",
            f"{share:.2f}",
            f"{each.seconds:.1f}",
        )
        print("| " + " | ".join(map(str, row)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
