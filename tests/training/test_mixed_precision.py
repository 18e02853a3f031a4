"""Autocast, a gradient scaler and accumulated gradients over 2, 3 and 1 workers, with replicas and with shards."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from tests.support.generations import Launcher
from tests.support.waiting import wait_until
from tests.training.amp_trainer import (
    BAD_STEP,
    BATCH,
    FIRST_SCALE,
    INTERVAL,
    PER_WORKER,
    SIZE,
    data,
    network,
    optimizer_of,
    whole,
)

pytestmark = [pytest.mark.training, pytest.mark.timeout(200)]

SCRIPT = Path(__file__).with_name("amp_trainer.py")
PATIENCE = 60.0
STEPS = 7
"""Steps at a scale: the bad one is in the second generation."""
CLOSE = 0.01
"""Largest difference of a weight to the reference: bfloat16 has three digits, and passes of other sizes round in
another way."""


def notes(folder: Path) -> list[dict[str, Any]]:
    found = [path.read_text().rpartition("\n")[0].splitlines() for path in folder.glob("notes-*.jsonl")]
    return sorted((json.loads(line) for lines in found for line in lines), key=lambda line: line["time"])


def scaler_states(steps: int) -> list[tuple[float, int]]:
    """Scale and good steps since its last change, after each step: what a scaler does that is never interrupted."""
    scale, tracker, found = FIRST_SCALE, 0, []
    for step in range(steps):
        if step == BAD_STEP:
            scale, tracker = scale / 2, 0
        elif tracker + 1 == INTERVAL:
            scale, tracker = scale * 2, 0
        else:
            tracker += 1
        found.append((scale, tracker))
    return found


def reference(steps: int, factor: float = 1.0) -> list[float]:
    """Weights of one process that makes one pass per step, without a scaler; its gradients have a factor."""
    from malletrain.client.sampling import EpochOrder
    from malletrain.client.training import permutation

    model, (inputs, targets), order = network(), data(), EpochOrder(SIZE, 3, permutation)
    optimizer = optimizer_of(model)
    for step in range(steps):
        indices = order.span(step * BATCH, BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(inputs[indices]), targets[indices])
        (factor * loss).backward()
        if step != BAD_STEP:
            optimizer.step()
    return whole(model)


@pytest.mark.parametrize("options", [(), ("--sharded",)], ids=["replicas", "shards"])
def test_scaler_and_accumulation_go_on_at_another_scale(options: tuple[str, ...], tmp_path: Path) -> None:
    preloaded = ("malletrain.client.fsdp", "malletrain.client.distributed")
    launcher = Launcher(SCRIPT, tmp_path, {"OMP_NUM_THREADS": "1"}, preloaded)

    def stepped(workers: int) -> list[dict[str, Any]]:
        return [
            line
            for line in notes(tmp_path)
            if line["event"] == "stepped" and line["rank"] == 0 and line["workers"] == workers
        ]

    for workers in (2, 3, 1):
        with launcher.generation(workers, *options) as running:
            wait_until(lambda workers=workers: len(stepped(workers)) >= STEPS, PATIENCE, f"steps of {workers} workers")
            assert running.stop() == [0] * workers, (tmp_path / "0.log").read_text()
    found = notes(tmp_path)
    steps = [line for line in found if line["event"] == "stepped" and line["rank"] == 0]
    assert [line["samples"] for line in steps] == list(range(0, len(steps) * BATCH, BATCH))
    states = scaler_states(len(steps))
    assert [(line["scaler"]["scale"], line["scaler"]["_growth_tracker"]) for line in steps] == states
    check_joints(found, steps)
    check_passes(found)
    overflown, before = steps[BAD_STEP], steps[BAD_STEP - 1]
    assert overflown["weights"] == before["weights"], "a step that overflows changes nothing"
    worst, too_large, too_small = (farthest(steps[-1]["weights"], reference(len(steps), by)) for by in (1.0, 1.1, 0.9))
    print(f"largest difference to one process after {len(steps)} steps: {worst:.2g}")
    assert worst <= CLOSE < min(too_large, too_small), "a tenth more or less in the gradients would be seen"


def farthest(ours: list[float], theirs: list[float]) -> float:
    """The largest difference."""
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def check_joints(found: list[dict[str, Any]], steps: list[dict[str, Any]]) -> None:
    """All workers of the next generation begin with the weights and the scaler of the last step of the one before."""
    ends = {
        line["samples"] + BATCH: line
        for line, after in itertools.pairwise(steps)
        if line["workers"] != after["workers"]
    }
    joints = [line for line in found if line["event"] == "loaded" and line["samples"]]
    assert sorted(line["workers"] for line in joints) == [1, 3, 3, 3]
    for line in joints:
        assert line["weights"] == ends[line["samples"]]["weights"]
        assert line["scaler"] == ends[line["samples"]]["scaler"]


def check_passes(found: list[dict[str, Any]]) -> None:
    """Each global batch is whole, whatever the passes in which it was made, and each sample of it is used once."""
    by_step: dict[int, list[int]] = {}
    for line in (line for line in found if line["event"] == "stepped"):
        assert [len(indices) for indices in line["indices"]] == [PER_WORKER] * (BATCH // PER_WORKER // line["workers"])
        by_step.setdefault(line["samples"], []).extend(index for indices in line["indices"] for index in indices)
    order = [index for samples in sorted(by_step) for index in by_step[samples]]
    assert all(len(indices) == BATCH for indices in by_step.values())
    assert len(order) > SIZE
    for epoch in range(len(order) // SIZE):
        assert sorted(order[epoch * SIZE : (epoch + 1) * SIZE]) == list(range(SIZE))
