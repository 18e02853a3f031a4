"""Accelerate's DeepSpeed plugin over changes of scale: the whole state is the same, and the training that of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("deepspeed", reason="needs deepspeed: make test-deepspeed")
pytest.importorskip("accelerate", reason="needs accelerate: make test-deepspeed")

from tests.frameworks.test_deepspeed import (
    NOISE,
    PATIENCE,
    STEPS,
    VARIABLES,
    check_samples,
    check_that_all_went_on,
    complete,
    farthest,
    notes,
    plain_losses,
    said,
    train_over,
    wait_for_steps,
)
from tests.support.generations import Launcher
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("zero_accelerator.py")
PRELOADED = ("deepspeed", "malletrain.client.framework_zero", "accelerate", "malletrain.client.accelerate")


def launcher_in(folder: Path, script: Path = SCRIPT) -> Launcher:
    folder.mkdir(exist_ok=True)
    return Launcher(script, folder, VARIABLES, PRELOADED)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return launcher_in(tmp_path / "job")


def undisturbed_losses(folder: Path, samples: int, *arguments: str, script: Path = SCRIPT) -> list[float]:
    launcher = launcher_in(folder, script)
    with launcher.generation(2, "--samples", str(samples), "--step-seconds", "0", *arguments) as running:
        assert running.join(PATIENCE) == [0, 0], said(folder)
    completed = json.loads((folder / "completed.json").read_text())
    assert (completed["samples"], completed["metrics"]["workers"]) == (samples, 2)
    return [line["loss"] for line in notes(folder, "stepped")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--stage", "1", "--hold"),
        ("--stage", "2"),
        ("--stage", "2", "--accumulate"),
        ("--stage", "3", "--by-environment"),
        ("--stage", "3", "--hold"),
        ("--stage", "2", "--by-file", "--offload"),
        ("--stage", "3", "--by-file", "--offload"),
    ],
    ids=" ".join,
)
def test_three_restarts_change_neither_the_state_nor_the_losses(
    arguments: tuple[str, ...], launcher: Launcher, tmp_path: Path
) -> None:
    # With --accumulate and --hold a step has several passes: the engine's boundary is the last one.
    scales = (2, 1, 3, 2)
    train_over(launcher, scales, *arguments)
    steps = check_that_all_went_on(launcher, scales)
    check_samples(steps)
    losses = [line["loss"] for line in steps]
    undisturbed = undisturbed_losses(tmp_path / "undisturbed", 12 * len(steps), *arguments)
    by_two, by_one = farthest(losses, undisturbed), farthest(losses, plain_losses(steps))
    print(f"{' '.join(arguments)}, {len(steps)} steps: {by_two:.2g} from an undisturbed one, {by_one:.2g} from torch")
    assert max(by_two, by_one) <= NOISE
    assert len({line["digest"] for line in steps}) == len(steps), "it trains"


def test_three_restarts_of_a_language_model_that_is_divided_while_it_is_made(tmp_path: Path) -> None:
    """As `zero3_init_flag` has Transformers make it: no worker ever has all of its weights."""
    pytest.importorskip("transformers", reason="needs transformers: make test-deepspeed")
    script, scales = SCRIPT.with_name("zero_language_model.py"), (2, 1, 3, 2)
    launcher = launcher_in(tmp_path / "job", script)
    train_over(launcher, scales)
    folder = launcher.folder
    steps = notes(folder, "stepped")
    assert [line["samples"] for line in steps] == list(range(0, 12 * len(steps), 12)), "no step is lost or made twice"
    after = {line["samples"] + 12: line["digest"] for line in steps}
    loads = [line for line in notes(folder, "loaded") if line["samples"] > 0]
    assert len(loads) == sum(scales[1:]), said(folder)
    assert all(line["digest"] == after[line["samples"]] for line in loads)
    undisturbed = undisturbed_losses(tmp_path / "undisturbed", 12 * len(steps), script=script)
    by_two = farthest([line["loss"] for line in steps], undisturbed)
    print(f"{len(steps)} steps: {by_two:.2g} from an undisturbed one")
    assert by_two <= 5 * NOISE
    assert len(set(after.values())) == len(steps), "it trains"


def test_a_job_scales_its_rates_in_steps_only(launcher: Launcher) -> None:
    # Half the batch that the rates fit, with AdamW: rates by its root in steps, those of the schedule between.
    train_over(launcher, (2, 1), "--stage", "2", "--reference", "24")
    steps = check_that_all_went_on(launcher, (2, 1))
    assert [line["rate"] for line in steps] == pytest.approx([0.01 * 0.99 ** (n + 1) for n in range(len(steps))])
    assert farthest([line["loss"] for line in steps], plain_losses(steps, 0.5**0.5)) <= NOISE
    assert farthest([line["loss"] for line in steps], plain_losses(steps)) > 100 * NOISE


@pytest.mark.parametrize(
    "arguments", [("--stage", "2", "--precision", "fp16"), ("--stage", "3", "--precision", "bf16")]
)
def test_half_precision_goes_on_from_full_weights_and_the_loss_scale(
    arguments: tuple[str, ...], launcher: Launcher
) -> None:
    train_over(launcher, (2, 3, 1), *arguments)
    check_that_all_went_on(launcher, (2, 3, 1))


@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_worker_killed_with_sigkill_costs_what_came_after_the_last_checkpoint(stage: str, launcher: Launcher) -> None:
    folder = launcher.folder
    with launcher.generation(3, "--stage", stage, "--checkpoint-seconds", "0.3") as running:
        wait_until(lambda: len(complete(folder)) >= 2, PATIENCE, "two checkpoints")
        running.lose(1)
    saved = complete(folder)[-1]
    with launcher.generation(2, "--stage", stage) as running:
        wait_for_steps(launcher, running, len(notes(folder, "stepped")) + STEPS)
        assert running.stop() == [0, 0], said(folder)
    loaded = [line for line in notes(folder, "loaded") if line["workers"] == 2]
    assert {line["samples"] for line in loaded} == {saved} != {0}
    (before,) = [line for line in notes(folder, "stepped") if line["workers"] == 3 and line["samples"] == saved - 12]
    assert {line["digest"] for line in loaded} == {before["digest"]}
    assert f"after the loss: {saved} samples are on disk" in said(folder)


def test_what_can_not_be_restored_is_refused_by_name(tmp_path: Path) -> None:
    launcher = Launcher(SCRIPT.with_name("zero_accelerator_refusals.py"), tmp_path, VARIABLES, PRELOADED)
    with launcher.generation(1) as running:
        assert running.join(PATIENCE) == [0], said(tmp_path)
    assert json.loads((tmp_path / "refusals.json").read_text()) == {
        "cpu": "cpu: expected False with DeepSpeed (DS_ACCELERATOR=cpu chooses CPUs), got True",
        "several": "deepspeed_plugin: expected one plugin, got several",
        "optimizer": "deepspeed_plugin: optimizer: expected none (give prepare one of torch), got AdamW",
        "scheduler": "deepspeed_plugin: scheduler: expected none (give prepare one of torch), got WarmupLR",
        "offload": "deepspeed_plugin: expected zero_force_ds_cpu_optimizer: false with offload_optimizer (the script's"
        " optimizer would be replaced), got true",
        "DummyOptim": "optimizer: expected one of torch, got DummyOptim",
        "DummyScheduler": "scheduler: expected one of torch, which follows the samples, got DummyScheduler",
        "WarmupLR": "scheduler: expected one of torch, which follows the samples, got WarmupLR",
        "held batch": "hold_batch: expected no accumulation of the script's own, got 2 passes",
        "stage 0": "zero_optimization.stage: expected 1, 2 or 3, got 0 (without ZeRO, use malletrain.client.elastic)",
    }
