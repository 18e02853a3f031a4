"""The callback for Transformers in one process: what is counted, and what an interruption changes, which is nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers: make test-frameworks")

import accelerate
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from malletrain.client.transformers import MalleTrainCallback
from tests.frameworks.interrupting import InterruptedTrainingError, record_metrics, record_reports
from tests.frameworks.phases import recorded_phases

pytestmark = pytest.mark.frameworks

SIZE = 20


class Line(nn.Module):
    """Fits a line; its loss is the mean over a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.dropout = nn.Dropout(0.1)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.dropout(self.layer(inputs[:, None])[:, 0])
        return {"loss": (found - labels).square().mean(), "found": found}


class Rates(TrainerCallback):
    """Notes the sample counter before each step with the rate that the optimizer steps with."""

    def __init__(self, stop_after: int = 0) -> None:
        self.seen: list[tuple[int, float]] = []
        self.elastic: MalleTrainCallback | None = None
        self._stop_after = stop_after

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        assert self.elastic is not None
        assert self.elastic.training is not None
        self.seen.append((self.elastic.training.samples, others["optimizer"].param_groups[0]["lr"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._stop_after and state.global_step >= self._stop_after:
            raise InterruptedTrainingError


def trainer_of(folder: Path, rates: Rates, elastic: dict[str, Any], **arguments: Any) -> Trainer:
    data = [{"inputs": float(number) / SIZE, "labels": 3.0 * number / SIZE} for number in range(SIZE)]
    given = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "warmup_steps": 4,
        "optim": "adamw_torch",
        "logging_steps": 1,
        **arguments,
    }
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    torch.manual_seed(0)
    trainer = Trainer(Line(), TrainingArguments(str(folder / "out"), **quiet, **given), train_dataset=data)
    rates.elastic = MalleTrainCallback(
        trainer, checkpoint_folder=folder / "checkpoints", checkpoint_seconds=0.0, **elastic
    )
    trainer.add_callback(rates.elastic)
    trainer.add_callback(rates)
    return trainer


def weights(trainer: Trainer) -> list[float]:
    return [value for tensor in trainer.model.state_dict().values() for value in tensor.flatten().tolist()]


def test_a_step_of_several_passes_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = record_reports(monkeypatch)
    trainer = trainer_of(tmp_path, Rates(), {}, gradient_accumulation_steps=2)
    trainer.train()
    assert reports == [(8, position) for position in range(8, 65, 8)]
    # An epoch ends with the step that reaches its last sample, and the training with the last one.
    assert trainer.state.global_step == trainer.state.max_steps == math.ceil(3 * SIZE / 8)
    assert trainer.state.epoch == 64 / SIZE
    assert trainer.args.max_steps == -1


def test_what_the_trainer_logs_has_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record_metrics(monkeypatch, "transformers")
    trainer = trainer_of(tmp_path, Rates(), {}, logging_steps=5)
    trainer.train()
    losses = [metrics["loss"] for metrics, _ in found if "loss" in metrics]
    assert losses == [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == math.ceil(3 * SIZE / 4) // 5
    assert {step for _, step in found} == {None}


def test_steps_of_the_arguments_are_those_of_the_reference_batch(tmp_path: Path) -> None:
    rates = Rates()
    trainer = trainer_of(tmp_path, rates, {"reference_batch": 8}, max_steps=6)
    trainer.train()
    assert [samples for samples, _ in rates.seen] == list(range(0, 48, 4))
    # Warmup over four steps of 8 samples to 0.1, then down to 0 after six; half of that with half of the batch.
    wanted = [0.1 * min(samples / 32, (48 - samples) / 16) for samples in range(0, 48, 4)]
    assert [rate for _, rate in rates.seen] == pytest.approx(wanted)


@pytest.mark.parametrize("batch", [4, 8, 2])
def test_a_scheduler_of_the_scripts_own_ends_with_the_training_at_any_batch(tmp_path: Path, batch: int) -> None:
    trainer = trainer_of(tmp_path, Rates(), {"reference_batch": 4}, per_device_train_batch_size=batch)
    steps = 3 * SIZE // 4
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    trainer.optimizer, trainer.lr_scheduler = optimizer, scheduler
    trainer.train()
    assert scheduler.last_epoch == steps
    assert trainer.lr_scheduler is scheduler


@pytest.mark.parametrize("passes", [1, 2])
def test_the_schedule_follows_the_sample_counter_at_any_batch(tmp_path: Path, passes: int) -> None:
    rates = Rates()
    trainer_of(tmp_path, rates, {"reference_batch": 4}, gradient_accumulation_steps=passes).train()
    steps = math.ceil(3 * SIZE / 4)
    for samples, rate in rates.seen:
        assert rate == pytest.approx(0.1 * min(samples / 16, (steps - samples / 4) / (steps - 4)))


@pytest.mark.parametrize("elastic", [{"reference_batch": 4}, {"reference_batch": 10, "hold_batch": True}, {}])
def test_an_interrupted_training_ends_like_one_that_is_not(tmp_path: Path, elastic: dict[str, Any]) -> None:
    whole = Rates()
    uninterrupted = trainer_of(tmp_path / "whole", whole, elastic)
    uninterrupted.train()
    interrupted = Rates(stop_after=4)
    first = trainer_of(tmp_path / "parts", interrupted, elastic)
    with pytest.raises(InterruptedTrainingError):
        first.train()
    assert interrupted.elastic is not None
    assert interrupted.elastic.training is not None
    interrupted.elastic.training.checkpoints.wait()
    rest = Rates()
    second = trainer_of(tmp_path / "parts", rest, elastic)
    second.train()
    assert 0 < rest.seen[0][0] <= interrupted.seen[-1][0]
    assert rest.seen == whole.seen[-len(rest.seen) :]
    assert weights(second) == weights(uninterrupted)
    assert second.state.global_step == uninterrupted.state.global_step

    def losses(trainer: Trainer) -> list[float]:
        return [logged["loss"] for logged in trainer.state.log_history if "loss" in logged]

    assert losses(second) == pytest.approx(losses(uninterrupted))


class Counting(TrainerCallback, ExportableState):
    """A callback with a state."""

    steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"steps": self.steps}}


def test_the_state_of_other_callbacks_goes_on(tmp_path: Path) -> None:
    for epochs in (1, 3):
        counting = Counting()
        trainer = trainer_of(tmp_path, Rates(), {}, num_train_epochs=epochs)
        trainer.add_callback(counting)
        trainer.train()
        assert counting.steps == trainer.state.global_step == epochs * SIZE / 4


def test_what_has_no_sample_counter_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^auto_find_batch_size: expected False"):
        trainer_of(tmp_path, Rates(), {}, auto_find_batch_size=True)
    trainer = trainer_of(tmp_path, Rates(), {})
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint: expected none"):
        trainer.train(resume_from_checkpoint=True)


def test_what_divides_the_state_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate divides on GPUs only: here it says so itself."""
    monkeypatch.setattr(accelerate.Accelerator, "distributed_type", accelerate.DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"^fsdp: expected whole parameters in each worker, got FSDP: "):
        trainer_of(tmp_path, Rates(), {})


def test_evaluations_and_saves_are_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_phases(monkeypatch) as phases:
        trainer = trainer_of(tmp_path, Rates(), {}, num_train_epochs=1)
        trainer.args.save_strategy = "epoch"
        trainer.evaluate(trainer.train_dataset)
        trainer.train()
    assert phases == ["evaluate", "save"]
