"""The accelerator in one process: what is counted, and what an interruption changes, which is nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="needs accelerate: make test-frameworks")

import torch
from accelerate import DistributedType
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from malletrain.client.accelerate import ElasticAccelerator
from tests.frameworks.interrupting import InterruptedTrainingError, record_metrics, record_reports
from tests.frameworks.phases import recorded_phases

pytestmark = pytest.mark.frameworks

SIZE = 20
EPOCHS = 3


class Script:
    """A script's loop, as its author has written it."""

    def __init__(self, folder: Path, *, scaler: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.rates: list[tuple[int, float]] = []
        self.accelerator = ElasticAccelerator(
            cpu=True, checkpoint_folder=folder, checkpoint_seconds=0.0, commit_seconds=0.0, **options
        )
        if scaler:
            # As with fp16 on a GPU; it doubles its scale after every second step.
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: self.rates.append((self.samples, optimizer.param_groups[0]["lr"])))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / 100)
        inputs = torch.arange(SIZE, dtype=torch.float32)[:, None] / SIZE
        loader = DataLoader(TensorDataset(inputs, 3.0 * inputs), batch_size=4, shuffle=True)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, scheduler
        )

    @property
    def samples(self) -> int:
        return self.accelerator.started.samples

    def train(self, *, accumulate: bool = True, stop_at: int = -1) -> None:
        for _ in self.accelerator.epochs(EPOCHS):
            for inputs, targets in self.loader:
                if accumulate:
                    with self.accelerator.accumulate(self.model):
                        self.run_pass(inputs, targets)
                else:
                    self.run_pass(inputs, targets)
                if self.samples >= stop_at >= 0:
                    raise InterruptedTrainingError
            self.accelerator.log({"weight": self.weights[0]})
        self.accelerator.end_training()

    def run_pass(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.accelerator.backward((self.model(inputs) - targets).square().mean())
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    @property
    def weights(self) -> list[float]:
        return [float(tensor) for tensor in self.accelerator.unwrap_model(self.model).state_dict().values()]


@pytest.fixture(autouse=True)
def _nothing_shared() -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_a_step_of_several_passes_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = record_reports(monkeypatch)
    script = Script(tmp_path, gradient_accumulation_steps=2)
    script.train()
    assert reports == [(8, position) for position in range(8, 65, 8)]
    assert len(script.loader) == 6


def test_the_numbers_that_are_logged_have_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record_metrics(monkeypatch, "accelerate")
    script = Script(tmp_path)
    script.accelerator.log({"loss": 0.5, "text": "none", "none": float("nan")}, step=7)
    script.train()
    assert found[0] == ({"loss": 0.5}, 7)
    assert [list(metrics) for metrics, _ in found[1:]] == [["weight"]] * EPOCHS


def test_the_completed_job_has_the_numbers_that_were_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, float]] = []
    monkeypatch.setattr("malletrain.client.training.done", lambda metrics, _: found.append(metrics))
    script = Script(tmp_path)
    script.train()
    assert [metrics["weight"] for metrics in found] == [script.weights[0]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reference_batch": 8},
        {"reference_batch": 10, "hold_batch": True},
        {"gradient_accumulation_steps": 2},
        {"scaler": True},
    ],
    ids=["plain", "scaled rates", "held batch", "accumulation", "loss scaler"],
)
def test_an_interrupted_training_ends_like_one_that_is_not(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = Script(tmp_path / "whole", **options)
    whole.train()
    first = Script(tmp_path / "parts", **options)
    with pytest.raises(InterruptedTrainingError):
        first.train(stop_at=24)
    first.accelerator.started.checkpoints.wait()
    second = Script(tmp_path / "parts", **options)
    begun = second.samples
    second.train()
    assert 0 < begun <= 32
    assert second.rates[0][0] == begun
    assert second.rates == whole.rates[-len(second.rates) :]
    assert second.weights == whole.weights
    if options.get("scaler"):
        assert second.accelerator.scaler.get_scale() == whole.accelerator.scaler.get_scale() > 4.0


def test_objects_given_to_accelerate_go_on(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        script = Script(tmp_path)
        averaged = nn.Linear(1, 1)
        nn.init.constant_(averaged.weight, value)
        script.accelerator.register_for_checkpointing(averaged)
        assert averaged.weight.item() == 1.0
        script.train()


def test_a_held_batch_needs_the_context_of_accumulation(tmp_path: Path) -> None:
    script = Script(tmp_path, reference_batch=10, hold_batch=True)
    with pytest.raises(RuntimeError, match=r"^backward: expected each pass to be made under `with accelerator\.acc"):
        script.train(accumulate=False)


def test_an_epoch_without_training_is_no_endless_loop(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with pytest.raises(RuntimeError, match=r"^epochs: expected an iteration over the prepared loader"):
        list(script.accelerator.epochs(2))


def test_what_has_no_sample_counter_is_refused_by_name() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = ElasticAccelerator(cpu=True)
    with pytest.raises(ValueError, match=r"^loader: expected DataLoader"):
        accelerator.prepare(model, optimizer, DataLoader(TensorDataset(torch.zeros(4)), batch_size=None))
    with pytest.raises(ValueError, match=r"^prepare: expected one model and one optimizer, got 2 and 1"):
        accelerator.prepare(model, nn.Linear(1, 1), optimizer, DataLoader(TensorDataset(torch.zeros(4))))
    with pytest.raises(RuntimeError, match=r"^ElasticAccelerator: expected accelerator\.prepare"):
        list(accelerator.epochs(1))


def test_what_divides_the_state_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate divides on GPUs only: here it says so itself."""
    monkeypatch.setattr(ElasticAccelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"^ElasticAccelerator: expected whole parameters in each worker, got FSDP: "):
        ElasticAccelerator(cpu=True)


def test_what_lies_between_two_iterations_and_saves_are_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_phases(monkeypatch) as phases:
        script = Script(tmp_path / "own")
        for _ in script.accelerator.epochs(1):
            for inputs, targets in script.loader:
                with script.accelerator.accumulate(script.model):
                    script.run_pass(inputs, targets)
        script.accelerator.save_state(str(tmp_path / "state"))
    assert sorted(phases) == ["evaluate", "save"]
