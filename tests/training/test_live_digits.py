"""A loop of its own under the five services, with the two backends that it can have: scales, a kill -9, a reclaim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.waiting import wait_until
from tests.training.live import ROOT, SCALES, change_scales, check_measured, keep, live_training, scales_after

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "digits" / "train.py"
SAMPLES = 20_000
BATCH = 32
SECONDS = 150.0


@pytest.mark.parametrize("backend", ["torchrun", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_digits_over_1_3_2_1_and_4_nodes_a_kill_and_a_reclaim(backend: str, tmp_path: Path) -> None:
    if backend == "horovod":
        pytest.importorskip("horovod.torch", reason="needs Horovod")
    arguments = ("--samples", str(SAMPLES), "--step-seconds", "0.2")
    with live_training(tmp_path, EXAMPLE, *arguments, backend=backend) as training:
        change_scales(training)
        completed = training.wait_completed(SECONDS)
        wait_until(lambda: not training.processes(), 20, "an end without processes")
        found = keep(f"digits-{backend}", training)
        check_measured(training)
        accounts = training.accounts()
        metrics = json.loads((training.folder / "completed.json").read_text())["metrics"]
    assert accounts.check_epochs() == accounts.samples // accounts.size
    assert SAMPLES <= accounts.samples == int(completed["samples"])
    assert scales_after(found) == (*SCALES[1:], 4, 3)
    undone = {pause.what for pause in found if pause.repeated}
    assert undone <= {"kill -9"}
    if backend == "torchrun":
        assert sum(pause.repeated for pause in found) in (0, 4 * BATCH)
    assert metrics["accuracy"] > 0.9
