"""What real workers have noted, added up: which sample was trained on how often, and with which weights."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.training.trainer_settings import BATCH, SIZE


@dataclass(frozen=True)
class Accounts:
    """One training.

    Attributes:
        batches: All notes of batches, of all workers, in order of time.
        attempts: By the sample's number in the training, the dataset indices that were tried, in order of time.
        size: Samples in the dataset.
    """

    batches: list[dict[str, Any]]
    attempts: dict[int, list[int]]
    size: int = SIZE

    @property
    def samples(self) -> int:
        """Samples of the training, without gap from its beginning."""
        assert sorted(self.attempts) == list(range(len(self.attempts))), "a sample was skipped"
        return len(self.attempts)

    @property
    def repeated(self) -> list[int]:
        """Numbers of the samples that were done, lost, and done again."""
        return sorted(number for number, indices in self.attempts.items() if len(indices) > 1)

    def check_epochs(self) -> int:
        """Each sample of an epoch was seen once, and the same one where it had to be repeated; number of epochs."""
        assert all(len(set(indices)) == 1 for indices in self.attempts.values())
        epochs = self.samples // self.size
        for epoch in range(epochs):
            order = [self.attempts[number][0] for number in range(epoch * self.size, (epoch + 1) * self.size)]
            assert sorted(order) == list(range(self.size))
        return epochs

    def check_state(self, *, by_steps: bool = False) -> None:
        """Rank 0 goes on from a state that it had at that very sample, and the others always have the same as it.

        The weights are compared bit by bit. The scheduler goes on by one with each batch of one worker that counts.

        Args:
            by_steps: The job's supervisor is of release 0.1, whose schedulers go on by one with each step.
        """
        states = defaultdict(set)
        kept: list[dict[str, Any]] = []
        for batch in self.batches:
            if batch["rank"] == 0:
                states[batch["before"]].add(_state(batch))
                while kept and kept[-1]["before"] > batch["before"]:
                    kept.pop()
                if kept and kept[-1]["before"] == batch["before"]:
                    assert _state(kept[-1]) == _state(batch)
                else:
                    by_samples = batch["before"] // len(batch["indices"])
                    assert batch["scheduled"] == (len(kept) if by_steps else by_samples)
                    kept.append(batch)
        assert all(_state(batch) in states[batch["before"]] for batch in self.batches)


def _state(batch: dict[str, Any]) -> tuple[float, int]:
    return batch["weight"], batch["scheduled"]


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """All notes, in order of time."""
    found = []
    for path in folder.glob("notes-*.jsonl"):
        found += [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]
    return sorted(found, key=lambda line: line["time"])


def accounts_of(folder: Path, size: int = SIZE, batch_per_worker: int = BATCH) -> Accounts:
    """Add up what is noted in a job's folder.

    Args:
        folder: The job's folder.
        size: Samples in the dataset.
        batch_per_worker: Samples of a worker in one step.
    """
    batches = [line for line in lines_in(folder) if line["event"] == "batch"]
    attempts = defaultdict(list)
    for batch in batches:
        assert len(batch["indices"]) == batch_per_worker
        for number, index in enumerate(batch["indices"], start=batch["before"] + batch["rank"] * batch_per_worker):
            attempts[number].append(index)
    return Accounts(batches, dict(attempts), size)
