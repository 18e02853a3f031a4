"""One training on the digits with many rescales, or with none, and what it has learned."""

from __future__ import annotations

import itertools
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.generations import Launcher
from tests.support.waiting import wait_until

TRAINER = Path(__file__).with_name("digits_trainer.py")
STATIC_SCALE = 3
MAX_SCALE = 4
PATIENCE = 120.0


@dataclass(frozen=True)
class Learned:
    """The end of a training.

    Attributes:
        accuracy: Share of the test images that are classified correctly.
        loss: Mean cross-entropy over the test images.
        samples: Samples trained on.
        rescales: Changes of the scale on the way.
    """

    accuracy: float
    loss: float
    samples: int
    rescales: int


def random_scales(count: int, rng: random.Random) -> list[int]:
    """Scales one after the other, each different from the one before."""
    scales = [STATIC_SCALE]
    while len(scales) <= count:
        scales.append(rng.choice([scale for scale in range(1, MAX_SCALE + 1) if scale != scales[-1]]))
    return scales


def with_torch(folder: Path, samples: int, seed: int, rescales: int, *options: str) -> Learned:
    """Train with torch.distributed: a new generation of workers at random moments."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    launcher = Launcher(TRAINER, folder, preloaded=("sklearn.datasets", "sklearn.model_selection"))
    ends = [*sorted(rng.sample(range(1, samples * 9 // 10), rescales)), 0]
    arguments = ("--samples", str(samples), "--seed", str(seed), *options)
    for scale, end in zip(random_scales(rescales, rng), ends, strict=True):
        with launcher.generation(scale, *arguments, "--stop-at", str(end)) as workers:
            codes = workers.join(PATIENCE)
            if codes != [0] * scale:
                raise AssertionError(f"workers ended with {codes}: {(folder / '0.log').read_text()[-2000:]}")
    return _learned(folder)


def with_horovod(folder: Path, samples: int, seed: int, rescales: int, *options: str) -> Learned:
    """Train with Elastic Horovod: workers come and go at random moments while the others train on."""
    from tests.supervisor.running import supervised

    rng = random.Random(seed)
    command = [sys.executable, str(TRAINER), "--samples", str(samples), "--seed", str(seed), *options]
    hosts = [f"n{number}" for number in range(MAX_SCALE)]
    first, *scales = random_scales(rescales, rng)
    with supervised(folder, *hosts[:first], command=command) as job:
        job.wait_confirmed()
        for scale in scales:
            if (folder / "completed.json").exists():
                break
            job.command(*rng.sample(hosts, scale))
            wait_until(
                lambda: (folder / "completed.json").exists() or job.state().confirmed_sequence >= job.sequence,
                PATIENCE,
                f"{scale} workers",
            )
        wait_until(lambda: (folder / "completed.json").exists(), 10 * PATIENCE, "the end of the training")
        job.outcome()
    return _learned(folder)


def _learned(folder: Path) -> Learned:
    completed = json.loads((folder / "completed.json").read_text())
    notes = [json.loads(line) for path in folder.glob("notes-*.jsonl") for line in path.read_text().splitlines()]
    scales = [note["size"] for note in sorted(notes, key=lambda note: note["time"])]
    rescales = sum(earlier != later for earlier, later in itertools.pairwise(scales))
    metrics = completed["metrics"]
    return Learned(metrics["accuracy"], metrics["loss"], completed["samples"], rescales)
