"""The gradient noise scale as workers measure it, against the gradients of single samples and a known noise scale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from malletrain.client import gradient_noise
from malletrain.client.gradient_noise import NoiseMeter, NoiseReports, PassPlan, measured_every
from malletrain.client.sampling import WorkerShare, partition_batch, partition_per_worker
from tests.support.ports import free_port
from tests.training.noise_problem import PROBLEM

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("noise_trainer.py")
ELASTIC = Path(__file__).with_name("noise_elastic_trainer.py")
STEPS = 401
TOLERANCE = 0.2
"""Some hundred measurements count: over seeds the estimates differ by a tenth."""


def run(script: Path, workers: int, *arguments: object) -> None:
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", str(workers), "--master-port", str(free_port()))
    command = [sys.executable, *launch, str(script), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, timeout=120, capture_output=True)


@pytest.mark.training
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("wrapper", ["ddp", "bucket", "fsdp"])
def test_two_workers_measure_what_single_samples_say(tmp_path: Path, wrapper: str, passes: int) -> None:
    output = tmp_path / "found.json"
    run(SCRIPT, 2, wrapper, passes, STEPS, output)
    found = json.loads(output.read_text())
    for name in ("signal", "noise"):
        assert found["first"][name] == pytest.approx(found["expected"][name], rel=1e-4), "of the first step"
    assert found["measurements"] == (STEPS + 1) // 2, "every second step"
    assert found["noise_scale"] == pytest.approx(PROBLEM.noise_scale, rel=TOLERANCE)


@pytest.mark.training
@pytest.mark.parametrize(
    ("kind", "steps", "per_node"),
    [("plain", (500, 1000), 8.0), ("held", (500, 500), 0.0), ("sharded", (500, 1000), 8.0)],
)
def test_elastic_trainings_go_on_with_their_estimate(
    tmp_path: Path, kind: str, steps: tuple[int, int], per_node: float
) -> None:
    """Two workers train 8,000 samples, then one as many: in the plain ones by comparing a step with the next one."""
    found = []
    for workers, until in ((2, 8000), (1, 16000)):
        output = tmp_path / f"{workers}.json"
        run(ELASTIC, workers, kind, tmp_path / "checkpoints", until, output)
        found.append(json.loads(output.read_text()))
    first, second = found
    assert first["began"]["measurements"] == 0
    assert first["ended"]["measurements"] == steps[0] // 10, "every tenth step"
    assert second["began"] == first["ended"]
    assert second["ended"]["measurements"] == (steps[0] + steps[1]) // 10
    for one in found:
        assert one["logged"], "once at least"
        assert {entry["batch_per_node"] for entry in one["logged"]} == {per_node}
        assert all(0 < entry["gradient_noise_scale"] < 1e6 for entry in one["logged"])


def one_worker(steps: int, sizes: tuple[int, ...], every: int = 2) -> NoiseMeter:
    model = PROBLEM.model()
    noise = NoiseMeter(model, every=every)
    for step in range(steps):
        model.zero_grad()
        noise.begin(PassPlan(sizes[0], sum(sizes), len(sizes), sizes[0] / sum(sizes)))
        for number, size in enumerate(sizes):
            inputs, targets = PROBLEM.samples(size, (step, number))
            (PROBLEM.loss(model(inputs), targets) * size / sum(sizes)).backward()
        noise.end()
    return noise


def test_one_worker_with_several_passes() -> None:
    noise = one_worker(STEPS, (10, 6, 8))
    assert noise.state_dict()["measurements"] == (STEPS + 1) // 2
    assert noise.noise_scale == pytest.approx(PROBLEM.noise_scale, rel=TOLERANCE)


def test_one_pass_of_one_worker_is_compared_with_the_next_step() -> None:
    """The weights stay as they are here, so that this has no bias."""
    noise = one_worker(STEPS, (16,), every=3)
    assert noise.state_dict()["measurements"] == (STEPS + 1) // 3, "two of three steps make a measurement"
    assert noise.noise_scale == pytest.approx(PROBLEM.noise_scale, rel=TOLERANCE)


def test_another_number_of_passes_than_was_said_is_no_measurement() -> None:
    model = PROBLEM.model()
    noise = NoiseMeter(model)
    inputs, targets = PROBLEM.samples(4, (0,))
    noise.begin(PassPlan(4, 8, passes=2, weight=0.5))
    PROBLEM.loss(model(inputs), targets).backward()
    assert not noise.end()
    assert noise.state_dict()["measurements"] == 0


def test_steps_between_measurements_have_no_hooks() -> None:
    model = PROBLEM.model()
    noise = NoiseMeter(model, every=4)
    found = []
    for _ in range(5):
        noise.begin(PassPlan(4, 8, passes=2))
        found.append(bool(model[0].weight._post_accumulate_grad_hooks))
        noise.end()
    assert found == [True, False, False, False, True]


def test_a_compiled_model_is_not_compiled_anew() -> None:
    torch.compiler.reset()
    counter, model = CompileCounter(), nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
    compiled = torch.compile(model, backend=counter)
    noise = NoiseMeter(model, every=3)
    for _ in range(9):
        noise.begin(PassPlan(4, 8, passes=2, weight=0.5))
        for _ in range(2):
            compiled(torch.ones(4, 6)).square().mean().mul(0.5).backward()
        noise.end()
    assert noise.state_dict()["measurements"] == 3
    assert counter.frame_count == 1
    torch.compiler.reset()


def test_an_estimate_is_taken_up_again() -> None:
    noise = one_worker(81, (8, 8))
    other = NoiseMeter(PROBLEM.model())
    other.load_state_dict(noise.state_dict())
    assert other.noise_scale == noise.noise_scale is not None


@pytest.mark.parametrize(
    ("told", "by_script", "every"),
    [("", True, 10), ("", False, 0), ("0", True, 0), ("1", False, 10), ("50", False, 50)],
)
def test_the_environment_precedes_the_script(told: str, by_script: bool, every: int) -> None:
    assert measured_every({"MALLETRAIN_GRADIENT_NOISE": told}, by_script) == every
    with pytest.raises(ValueError, match="MALLETRAIN_GRADIENT_NOISE"):
        measured_every({"MALLETRAIN_GRADIENT_NOISE": "yes"}, by_script=False)


@pytest.mark.parametrize(("grows", "per_node"), [(True, 16.0), (False, 0.0)])
def test_it_is_logged_with_what_a_node_adds(monkeypatch: pytest.MonkeyPatch, grows: bool, per_node: float) -> None:
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(gradient_noise, "log_metrics", logged.append)
    now = [0.0]
    model = PROBLEM.model()
    partition = partition_per_worker(8, 1, micro_steps=2) if grows else partition_batch(16, 8, 1)
    reports = NoiseReports(NoiseMeter(model, every=2), batch_grows=grows, clock=lambda: now[0])
    for step in range(100):
        model.zero_grad()
        reports.begin(WorkerShare(0, 0, partition))
        for number, size in enumerate(partition.micro_batches(0)):
            inputs, targets = PROBLEM.samples(size, (step, number))
            (PROBLEM.loss(model(inputs), targets) * partition.weight(size)).backward()
        reports.end(partition.global_batch, 1)
        now[0] += 0.25
    assert logged[0] == {"batch_per_node": per_node, "gradient_noise_scale": logged[0]["gradient_noise_scale"]}
    assert len(logged) == 11, "of 21 estimates in ten seconds, one a second at most"
