"""Replicas of two stages of two workers each under the five services: a kill, a replica that is taken, and growth."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.waiting import wait_until
from tests.training.accounts import lines_in
from tests.training.live import keep, live_training, scales_after
from tests.training.parallel import EXAMPLE, check_samples, curve, farthest
from tests.training.test_fsdp import said
from tests.training.test_parallel_replicas import CLOSE, PATIENCE, launcher

pytestmark = [pytest.mark.training, pytest.mark.timeout(1800)]

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
SLOTS, WORKERS = 2, 4
"""Workers of a node, and of a replica of two nodes."""
ARGUMENTS = ("--epochs", "1", "--step-seconds", "0.1")


def test_a_kill_a_reclaim_and_growth_leave_samples_and_curve_as_they_were(tmp_path: Path) -> None:
    options = ("--nodes-per-replica", "2", "--slots", str(SLOTS), "--max", "4")
    with live_training(tmp_path, EXAMPLE, *ARGUMENTS, options=options, nodes=NODES) as training:
        # Eight workers look up torch's rules for divided tensors at each start, on as many cores as there are.
        training.patience = PATIENCE
        training.give("n2", "n3", "n4")
        training.wait_scale(2 * WORKERS)
        training.kill(2 * WORKERS - 3)
        training.wait_scale(2 * WORKERS)
        used = training.nodes()
        training.reclaim(*dict.fromkeys(used[WORKERS:]), what="reclaim of a replica")
        training.wait_scale(WORKERS)
        training.give("n5", "n6")
        training.wait_scale(2 * WORKERS)
        completed = training.wait_completed(PATIENCE)
        wait_until(lambda: not training.processes(), 20, "an end without processes")
        found = keep("gpt", training)
        lines = lines_in(training.folder)
        logs = "".join(path.read_text() for path in training.folder.glob("logs/*.log"))
    assert scales_after(found)[-3:] == (8, 4, 8)
    assert {pause.what: pause.repeated for pause in found if pause.repeated} == {}, "no step was made twice"
    assert logs.count("another worker is lost") >= WORKERS
    # The worker that was killed may have made a step that it could not note.
    assert check_samples(lines, WORKERS) == int(completed["samples"])
    assert {line["size"] for line in lines} <= {WORKERS, 2 * WORKERS}, "no partial replica has ever trained"
    undisturbed = launcher(tmp_path / "undisturbed", WORKERS)
    with undisturbed.generation(WORKERS, *ARGUMENTS) as running:
        assert running.join(PATIENCE) == [0] * WORKERS, said(undisturbed.folder)
    distance = farthest(curve(lines), curve(lines_in(undisturbed.folder)))
    print(f"largest difference of a step's loss to an undisturbed training: {distance:.2g}")
    assert distance < CLOSE
