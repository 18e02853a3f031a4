"""The example whose replicas are divided by layers and within layers: a copy that notes what it does, and its curve."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from malletrain.client.sampling import EpochOrder
from malletrain.client.training import permutation

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
STEP = 24
"""Samples of each step, at any scale."""


def noting_copy(folder: Path) -> Path:
    """A copy of the example in a folder, with one line more."""
    first, annotations, rest = EXAMPLE.read_text().partition("from __future__ import annotations\n")
    shutil.copy(Path(__file__).with_name("noting.py"), folder)
    script = folder / "train.py"
    script.write_text(f"{first}{annotations}\nimport noting\n{rest}")
    return script


def curve(lines: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Mean loss of each step over the replicas' last stages, by the samples before it."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for line in lines:
        if line["loss"] is not None:
            # Workers that divide a layer have the same loss.
            found[line["before"]][line["first"]] = line["loss"]
    return {before: fmean(losses.values()) for before, losses in found.items()}


def farthest(curve_a: dict[int, float], curve_b: dict[int, float]) -> float:
    """Largest difference of two curves, which have the same steps."""
    assert curve_a.keys() == curve_b.keys()
    return max(abs(curve_a[before] - curve_b[before]) for before in curve_a)


def check_samples(lines: list[dict[str, Any]], per_replica: int) -> int:
    """Each sample was trained with once, by all workers of one replica alike; their number.

    A step that was made again is one that no worker's state has: it counts as trained once more, and fails.

    Args:
        lines: What all workers have noted.
        per_replica: Workers of a replica.
    """
    order = EpochOrder(lines[0]["dataset"], 0, permutation)
    seen: dict[int, int] = defaultdict(int)
    for line in lines:
        assert line["indices"] == order.span(line["first"], len(line["indices"])), line
        for number in range(line["first"], line["first"] + len(line["indices"])):
            seen[number] += 1
    assert sorted(seen) == list(range(len(seen))), "a sample was skipped"
    too_often = {number: count for number, count in seen.items() if count > per_replica}
    assert not too_often, "a sample was trained with again"
    return len(seen)
