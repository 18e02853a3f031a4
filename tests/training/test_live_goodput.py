"""A job whose goodput counts, under the five services: its training tells its noise scale, and plans know it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.v1 import allocator_pb2, resources_pb2
from tests.support.waiting import wait_until
from tests.training.live import PATIENCE, ROOT, LiveTraining, live_training

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "examples" / "digits" / "train.py"
BATCH = 32


def planned(training: LiveTraining) -> resources_pb2.Goodput | None:
    """What the newest plan believes of the job's efficiency; None: a speed counts for itself."""
    with closing(training.system.stubs) as stubs:
        plan = stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=PATIENCE).plan
    (job,) = (job for job in plan.problem.jobs if job.id == training.job)
    return job.value.goodput if job.value.WhichOneof("form") == "goodput" else None


def test_the_noise_scale_of_a_training_comes_to_plans(tmp_path: Path) -> None:
    arguments = ("--samples", "100000000", "--step-seconds", "0.01")
    options = ("--value", "goodput=48")
    with live_training(tmp_path, EXAMPLE, *arguments, options=options, nodes=("n1", "n2", "n3")) as training:
        training.wait(lambda: bool(training.steps()), PATIENCE, "the first step")
        training.wait_scale(1)
        assert planned(training) is None, "nothing is told yet"
        training.give("n2")
        training.wait_scale(2)

        def told() -> list[float]:
            names = ("gradient_noise_scale", "batch_per_node")
            logged = training.state().get("loggedMetrics", {})
            return [logged[name]["value"] for name in names if name in logged]

        training.wait(lambda: len(told()) == 2, PATIENCE, "the training metrics")
        noise_scale, per_node = told()
        assert per_node == BATCH
        assert noise_scale > 0
        training.give("n3")
        training.wait_scale(3)
        wait_until(lambda: planned(training) is not None, PATIENCE, "a plan that knows it")
        found = planned(training)
        assert found is not None
        assert (found.initial_batch, found.batch_per_node) == (48.0, BATCH)
        assert found.noise_scale > 0
