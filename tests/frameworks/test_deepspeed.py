"""DeepSpeed's ZeRO over changes of scale: the whole state is the same to the last bit, and the training that of one."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs deepspeed: make test-deepspeed")

import torch

from tests.support.generations import Generation, Launcher
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("zero_trainer.py")
EXAMPLES = Path(__file__).parents[2] / "examples" / "deepspeed"
PRELOADED = ("deepspeed", "malletrain.client.deepspeed")
PATIENCE = 120.0
VARIABLES = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
STEPS = 5
NOISE = 2e-6
"""Largest difference of a loss: other numbers of workers add up gradients in another order (float32)."""


def launcher_in(folder: Path) -> Launcher:
    folder.mkdir(exist_ok=True)
    return Launcher(SCRIPT, folder, VARIABLES, PRELOADED)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return launcher_in(tmp_path / "job")


def notes(folder: Path, event: str) -> list[dict[str, Any]]:
    """What was noted of an event, by sample counter."""
    found = [path.read_text().rpartition("\n")[0].splitlines() for path in folder.glob("notes-*.jsonl")]
    lines = [json.loads(line) for lines in found for line in lines]
    return sorted((line for line in lines if line["event"] == event), key=lambda line: line["samples"])


def said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


def wait_for_steps(launcher: Launcher, running: Generation, steps: int) -> None:
    """Wait until so many steps have been made in all, or a worker is gone."""

    def made_or_gone() -> bool:
        gone = [worker.exitcode for worker in running.workers if worker.exitcode is not None]
        return bool(gone) or len(notes(launcher.folder, "stepped")) >= steps

    wait_until(made_or_gone, PATIENCE, f"{steps} steps")
    assert len(notes(launcher.folder, "stepped")) >= steps, said(launcher.folder)


def train_over(launcher: Launcher, scales: tuple[int, ...], *arguments: str, **by_scale: tuple[str, ...]) -> None:
    """Train some steps at each scale, then have all save and leave."""
    for number, workers in enumerate(scales):
        more = by_scale.get(f"number_{number}", ())
        before = len(notes(launcher.folder, "stepped"))
        with launcher.generation(workers, *arguments, *more) as running:
            wait_for_steps(launcher, running, before + STEPS)
            assert running.stop() == [0] * workers, said(launcher.folder)


def check_that_all_went_on(launcher: Launcher, scales: tuple[int, ...]) -> list[dict[str, Any]]:
    """Each worker began with the state after the last step of those before it; rank 0's notes after each step."""
    steps = notes(launcher.folder, "stepped")
    assert [line["samples"] for line in steps] == list(range(0, 12 * len(steps), 12)), "no step is lost or made twice"
    by_end = {line["samples"] + 12: line for line in steps}
    loads = [line for line in notes(launcher.folder, "loaded") if line["samples"] > 0]
    assert len(loads) == sum(scales[1:]), said(launcher.folder)
    for line in loads:
        before = by_end[line["samples"]]
        for name in ("digest", "scale", "numbers", "engine_steps", "passes"):
            assert line[name] == before[name], f"{name} at {line['samples']} samples"
    for line in (line for line in loads if line["rank"] == 0):
        before = by_end[line["samples"]]
        assert (line["rate"], line["random"]) == (before["rate"], before["random"])
    return steps


def check_samples(steps: list[dict[str, Any]]) -> None:
    """Each sample of the first epoch is used once."""
    from tests.frameworks.zero_trainer import BATCH, SIZE

    epoch = [index for line in steps[: SIZE // BATCH] for index in line["indices"]]
    assert sorted(epoch) == list(range(SIZE))


def plain_losses(steps: list[dict[str, Any]], factor: float = 1.0) -> list[float]:
    """Losses of one process with torch alone, with the same samples, and rates of the schedule times a factor."""
    from tests.frameworks.zero_trainer import Network, data, optimizer_of, schedule_of

    model = Network()
    optimizer = optimizer_of(model, "adamw")
    for group in optimizer.param_groups:
        group["lr"] *= factor
    schedule = schedule_of(optimizer)
    inputs, targets = data()
    losses = []
    for line in steps:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[line["indices"]]), targets[line["indices"]])
        loss.backward()
        # With the norm over all workers.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def undisturbed_losses(folder: Path, workers: int, samples: int, *arguments: str) -> list[float]:
    launcher = launcher_in(folder)
    with launcher.generation(workers, "--samples", str(samples), "--step-seconds", "0", *arguments) as running:
        assert running.join(PATIENCE) == [0] * workers, said(launcher.folder)
    return [line["loss"] for line in notes(launcher.folder, "stepped")]


def farthest(ours: list[float], theirs: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_three_restarts_change_neither_the_state_nor_the_losses(stage: str, launcher: Launcher, tmp_path: Path) -> None:
    scales = (2, 3, 1, 2)
    train_over(launcher, scales, "--stage", stage)
    steps = check_that_all_went_on(launcher, scales)
    check_samples(steps)
    losses = [line["loss"] for line in steps]
    undisturbed = undisturbed_losses(tmp_path / "undisturbed", 2, 12 * len(steps), "--stage", stage)
    by_two, by_one = farthest(losses, undisturbed), farthest(losses, plain_losses(steps))
    print(f"ZeRO {stage}, {len(steps)} steps: {by_two:.2g} from an undisturbed training, {by_one:.2g} from torch alone")
    assert max(by_two, by_one) <= NOISE
    assert len({line["digest"] for line in steps}) == len(steps), "it trains"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--stage", "3", "--precision", "bf16", "--persist", "0"),
        ("--stage", "2", "--precision", "fp16"),
        ("--stage", "1", "--precision", "bf16", "--optimizer", "sgd"),
        ("--stage", "3", "--precision", "fp16"),
        ("--stage", "2", "--precision", "bf16", "--offload"),
        ("--stage", "3", "--precision", "bf16", "--offload", "--persist", "0"),
        ("--stage", "3", "--offload"),
    ],
    ids=" ".join,
)
def test_half_precision_goes_on_from_full_weights_and_the_loss_scale(
    arguments: tuple[str, ...], launcher: Launcher
) -> None:
    train_over(launcher, (2, 3, 2), *arguments)
    steps = check_that_all_went_on(launcher, (2, 3, 2))
    if "fp16" in arguments:
        assert steps[-1]["scale"] > steps[0]["scale"], "it doubles after every second step"


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_held_batch_is_the_same_training_at_every_scale(stage: str, launcher: Launcher, tmp_path: Path) -> None:
    arguments = ("--stage", stage, "--hold", "--per-worker", "4")
    train_over(launcher, (2, 1, 3), *arguments)
    steps = notes(launcher.folder, "stepped")
    assert [line["samples"] for line in steps] == list(range(0, 12 * len(steps), 12))
    undisturbed = undisturbed_losses(tmp_path / "undisturbed", 3, 12 * len(steps), *arguments)
    assert farthest([line["loss"] for line in steps], undisturbed) <= NOISE
    assert farthest([line["loss"] for line in steps], plain_losses(steps)) <= NOISE


def test_a_job_goes_on_with_another_stage(launcher: Launcher) -> None:
    scales = (2, 3, 2)
    train_over(launcher, scales, number_0=("--stage", "1"), number_1=("--stage", "3", "--persist", "0"), number_2=())
    steps = check_that_all_went_on(launcher, scales)
    assert farthest([line["loss"] for line in steps], plain_losses(steps)) <= NOISE


def complete(folder: Path) -> list[int]:
    paths = (folder / "checkpoints").glob("samples-*.shards/.metadata")
    return sorted(int(path.parent.stem.partition("-")[2]) for path in paths)


@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_worker_killed_with_sigkill_costs_what_came_after_the_last_checkpoint(stage: str, launcher: Launcher) -> None:
    folder = launcher.folder
    with launcher.generation(3, "--stage", stage, "--checkpoint-seconds", "0.3") as running:
        wait_until(lambda: len(complete(folder)) >= 2, PATIENCE, "two checkpoints")
        running.lose(1)
    saved = complete(folder)[-1]
    # As of workers that were killed while they wrote: an older one, and one that would be the newest.
    unfinished = [folder / "checkpoints" / f"samples-{number:015d}.shards" for number in (1, 10**9)]
    for path in unfinished:
        path.mkdir()
        (path / "training.pt").write_bytes(b"unfinished")
    with launcher.generation(2, "--stage", stage) as running:
        wait_for_steps(launcher, running, len(notes(folder, "stepped")) + STEPS)
        assert running.stop() == [0, 0], said(folder)
    loaded = [line for line in notes(folder, "loaded") if line["workers"] == 2]
    assert {line["samples"] for line in loaded} == {saved} != {0}
    (before,) = [line for line in notes(folder, "stepped") if line["workers"] == 3 and line["samples"] == saved - 12]
    assert {line["digest"] for line in loaded} == {before["digest"]}
    assert len(complete(folder)) == 2
    assert not unfinished[0].exists()
    first = min(line["samples"] for line in notes(folder, "stepped") if line["workers"] == 2)
    assert first == saved
    assert f"after the loss: {saved} samples are on disk" in said(folder)


def test_what_can_not_be_restored_is_refused_by_name(tmp_path: Path) -> None:
    script = SCRIPT.with_name("zero_refusals.py")
    launcher = Launcher(script, tmp_path, VARIABLES, PRELOADED)
    with launcher.generation(1) as running:
        assert running.join(PATIENCE) == [0], said(tmp_path)
    found = json.loads((tmp_path / "refusals.json").read_text())
    assert found == {
        "no engine": "engine: expected what deepspeed.initialize has returned first, got Linear",
        "stage 0": "zero_optimization.stage: expected 1, 2 or 3, got 0 (without ZeRO, use malletrain.client.elastic)",
        "accumulation": "gradient_accumulation_steps: expected 1 (hold_batch accumulates, at any number of workers),"
        " got 2",
        "scheduler": "lr_scheduler: expected none in deepspeed.initialize; training.register it, and"
        " training.step(scheduler.step), got WarmupLR",
        "offload_optimizer": "zero_optimization.offload_optimizer.device: expected none or cpu: what is on other media"
        " is not read back, got nvme",
        "offload_param": "zero_optimization.offload_param.device: expected none or cpu: what is on other media is not"
        " read back, got nvme",
        "framework": "optimizer: expected one of torch, got DeepSpeedZeroOptimizer: what it divides is saved, for any"
        " number of workers, by malletrain.client.deepspeed, or ElasticAccelerator, alone",
        "loss scaler": "grad_scaler: expected none (DeepSpeed's own, by fp16 in its configuration), got one",
        "other groups": "optimizer: expected 2 groups of parameters, got 1",
        "other weights": "checkpoint samples-000000000000024.shards, rank 0: RuntimeError: weights/layers.0.weight:"
        " expected 84 numbers in the checkpoint, got 91",
        "other checkpoint": "checkpoint samples-000000000000024.shards: expected one of a training with DeepSpeed, got"
        " another one",
        "other optimizer": "optimizer: expected one number, or one for each weight, got (2, 2) as blocks of Blocks",
    }


def marks(folder: Path, word: str) -> list[int]:
    """Sample counters that rank 0 has printed after a word."""
    return [int(found) for found in re.findall(rf"malletrain: {word} at (\d+) samples", said(folder))]


@pytest.mark.parametrize("stage", ["1", "3"])
def test_the_example_goes_on_with_any_number_of_workers(stage: str, tmp_path: Path) -> None:
    launcher = Launcher(EXAMPLES / "elastic.py", tmp_path, VARIABLES, PRELOADED)
    for workers in (2, 3):
        before = complete(tmp_path)[-1:]
        with launcher.generation(workers, "--stage", stage, "--step-seconds", "0.1") as running:
            wait_until(lambda before=before: complete(tmp_path)[-1:] != before, PATIENCE, "a checkpoint")
            assert running.stop() == [0] * workers, said(tmp_path)
    with launcher.generation(1, "--stage", stage, "--epochs", "2") as running:
        assert running.join(PATIENCE) == [0], said(tmp_path)
    assert set(marks(tmp_path, "resumed")) == set(marks(tmp_path, "stopping"))
    completed = json.loads((tmp_path / "completed.json").read_text())
    loading = [float(found) for found in re.findall(r"loaded in ([0-9.]+) s", said(tmp_path))]
    print(f"ZeRO {stage}: loaded in {loading} s, {completed['metrics']}")
    assert len(loading) == 2
    assert completed["metrics"]["loss"] < math.log(256) - 2.0


def test_the_plain_example_trains_by_itself() -> None:
    # As one process of a launcher; but DeepSpeed would first compile an exchange by shared memory, for two minutes.
    words = "import runpy, deepspeed.ops; deepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False;"
    script = str(EXAMPLES / "plain.py")
    command = [sys.executable, "-c", f"{words} runpy.run_path({script!r}, run_name='__main__')", "--epochs", "1"]
    group = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **VARIABLES, **group, "MASTER_PORT": str(free_port())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"test loss \d", done.stdout), done.stdout
