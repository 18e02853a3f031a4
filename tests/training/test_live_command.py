"""A program under the five services with the backend `command`: started again with other hosts, killed, and moved."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.waiting import wait_until
from tests.training.command_trainer import BATCH, EVERY
from tests.training.live import NODES, PATIENCE, check_measured, keep, live_training, scales_after

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("command_trainer.py")
SAMPLES = 3000


def test_a_program_over_1_3_and_1_nodes_a_kill_and_a_reclaim(tmp_path: Path) -> None:
    with live_training(tmp_path, PROGRAM, str(SAMPLES), backend="command", notes=True) as training:
        training.wait(lambda: bool(training.steps()), PATIENCE, "the first step")
        training.wait_scale(1)
        first = training.newest(0)["hosts"]
        training.give(*[node for node in NODES if node not in first][:2])
        training.wait_scale(3)
        training.take(*training.newest(0)["hosts"][1:])
        training.wait_scale(1)
        training.kill(0)
        training.wait_scale(1)
        training.give(*NODES[2:])
        training.wait_scale(3)
        training.reclaim(training.newest(0)["hosts"][0])
        training.wait_scale(2)
        completed = training.wait_completed(PATIENCE)
        wait_until(lambda: not training.processes(), 20, "an end without processes")
        found = keep("command", training)
        check_measured(training)
        accounts = training.accounts()
    assert accounts.check_epochs() == SAMPLES // accounts.size
    assert accounts.samples == int(completed["samples"]) == SAMPLES
    assert scales_after(found) == (3, 1, 1, 3, 2)
    # A program that is killed saves nothing: its work since the last checkpoint is done again.
    undone = {pause.what: pause.repeated for pause in found if pause.repeated}
    assert set(undone) <= {"kill -9"}
    assert len(accounts.repeated) == sum(undone.values()) < EVERY * BATCH
