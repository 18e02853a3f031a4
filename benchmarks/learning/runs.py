"""Trainings of the examples with each framework, static and over changes of scale."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.generations import Launcher

ROOT = Path(__file__).parents[2]
STATIC_SCALE = 2
SCALES = (1, 3, 2, 1, 4, 2)
"""Workers of an elastic run, each for the same number of samples."""
PATIENCE = 300.0


@dataclass(frozen=True)
class Example:
    """One of the examples.

    Attributes:
        samples: Samples in its training set.
        epochs: How many it is trained with here.
        loss: Name of its metric with the loss of the test set.
        accuracy: The same for the accuracy; empty without one.
    """

    samples: int
    epochs: int
    loss: str = "loss"
    accuracy: str = "accuracy"


EXAMPLES: Mapping[str, Example] = {
    "lightning": Example(1437, 8),
    "transformers": Example(1227, 8, "eval_loss", "eval_accuracy"),
    "accelerate": Example(1227, 8),
    "fsdp2": Example(1653, 6, accuracy=""),
}


@dataclass(frozen=True)
class Learned:
    """The end of a training.

    Attributes:
        name: The example.
        seed: Its seed.
        scales: Workers, one generation after the other.
        samples: Samples trained with.
        loss: Loss on the test set.
        accuracy: Accuracy on the test set; None if it has none.
    """

    name: str
    seed: int
    scales: tuple[int, ...]
    samples: int
    loss: float
    accuracy: float | None

    @property
    def elastic(self) -> bool:
        """Whether the scale changed."""
        return len(self.scales) > 1


def train(name: str, seed: int, scales: Sequence[int], folder: Path, preloaded: Sequence[str]) -> Learned:
    """One training.

    Args:
        name: The example.
        seed: Its seed.
        scales: Workers, one generation after the other.
        folder: A new folder.
        preloaded: Modules that workers find imported.

    Raises:
        RuntimeError: a worker has failed.
    """
    example = EXAMPLES[name]
    folder.mkdir(parents=True)
    variables = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "learning", "LOCAL_WORLD_SIZE": "1"}
    launcher = Launcher(Path(__file__).with_name("stopping.py"), folder, variables, preloaded)
    script = str(ROOT / "examples" / name / "elastic.py")
    total = example.epochs * example.samples
    for number, scale in enumerate(scales, start=1):
        end = total * number // len(scales) if number < len(scales) else 0
        arguments = (script, str(end), "--epochs", str(example.epochs), "--seed", str(seed))
        with launcher.generation(scale, *arguments) as workers:
            codes = workers.join(PATIENCE)
        if codes != [0] * scale:
            raise RuntimeError(f"{name}: workers ended with {codes}: {(folder / '0.log').read_text()[-2000:]}")
    found = json.loads((folder / "completed.json").read_text())
    metrics = found["metrics"]
    accuracy = metrics[example.accuracy] if example.accuracy else None
    return Learned(name, seed, tuple(scales), found["samples"], metrics[example.loss], accuracy)


class Rows:
    """A file with a row for each training, so that what was interrupted goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: list[Learned] = []
        if path.exists():
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            self.found = [Learned(**{**row, "scales": tuple(row["scales"])}) for row in rows]

    def has(self, name: str, seed: int, scales: Sequence[int]) -> bool:
        """Whether a training has been made."""
        return any((row.name, row.seed, row.scales) == (name, seed, tuple(scales)) for row in self.found)

    def add(self, row: Learned) -> None:
        """Keep a row."""
        self.found.append(row)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
