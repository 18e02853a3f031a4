"""Each framework under the five services: scales change, a worker is killed, rank 0's node is wanted back.

What loaders have really read is compared, not what the helper says of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.frameworks.diffs import EXAMPLES
from tests.frameworks.needing import need
from tests.support.waiting import wait_until
from tests.training.live import SCALES, change_scales, check_measured, keep, live_training, scales_after

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

EPOCHS = 16
SECONDS = 200.0
BATCH = 32
"""Samples of a worker's step in each example."""


@pytest.mark.parametrize(("name", "accuracy"), [("lightning", 0.9), ("transformers", 0.5), ("accelerate", 0.5)])
def test_the_example_over_1_3_2_1_and_4_nodes_a_kill_and_a_reclaim(name: str, accuracy: float, tmp_path: Path) -> None:
    need(name)
    arguments = ("--epochs", str(EPOCHS), "--step-seconds", "0.2")
    with live_training(tmp_path, EXAMPLES / name / "elastic.py", *arguments) as training:
        change_scales(training)
        completed = training.wait_completed(SECONDS)
        wait_until(lambda: not training.processes(), 20, "an end without processes")
        found = keep(name, training)
        check_measured(training)
        accounts = training.accounts()
        metrics = json.loads((training.folder / "completed.json").read_text())["metrics"]
    assert accounts.check_epochs() == EPOCHS
    assert accounts.samples == int(completed["samples"])
    assert scales_after(found) == (*SCALES[1:], 4, 3)
    # The others save what the killed worker has had: the batch at hand is trained with again, and nothing else.
    undone = {pause.what: pause.repeated for pause in found if pause.repeated}
    assert undone in ({}, {"kill -9": 4 * BATCH})
    assert len(accounts.repeated) <= 4 * BATCH
    losses = [batch["loss"] for batch in accounts.batches]
    assert fmean(losses[-30:]) < 0.5 * fmean(losses[:3])
    assert max(value for metric, value in metrics.items() if metric.endswith("accuracy")) > accuracy
