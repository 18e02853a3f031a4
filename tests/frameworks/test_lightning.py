"""The callback for Lightning in one process: what is counted, and what an interruption changes, which is nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="needs lightning: make test-frameworks")

import lightning as L  # noqa: N812  # as in Lightning's documentation
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from malletrain.client.lightning import MalleTrainCallback
from tests.frameworks.interrupting import InterruptedTrainingError, record_metrics, record_reports
from tests.frameworks.phases import recorded_phases

pytestmark = pytest.mark.frameworks

SIZE = 20
EPOCHS = 3
QUIET: dict[str, Any] = {
    **{"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False},
    "accelerator": "cpu",
}


class Line(L.LightningModule):
    """Fits a line, with a dropout and a scheduler that steps with each step or each epoch."""

    def __init__(self, interval: str = "step") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1))
        self.interval = interval

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return (self.layers(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("loss", (self.layers(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: 1.0 - steps / 100)
        return [optimizer], [{"scheduler": scheduler, "interval": self.interval}]


class Steps(Callback):
    """Notes sample counter, step and rate in each step, and the rate outside of it; its count is a state of its own."""

    def __init__(self, stop_after: int = 0) -> None:
        self.seen: list[tuple[int, int, float]] = []
        self.outside: list[float] = []
        self.counted = 0
        self.elastic: MalleTrainCallback | None = None
        self._stop_after = stop_after

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self.elastic is not None
        assert self.elastic.training is not None
        self.seen.append((self.elastic.training.samples, trainer.global_step, optimizer.param_groups[0]["lr"]))
        self.counted += 1

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.outside.append(trainer.optimizers[0].param_groups[0]["lr"])
        if self._stop_after and trainer.global_step >= self._stop_after:
            raise InterruptedTrainingError

    def state_dict(self) -> dict[str, Any]:
        return {"counted": self.counted}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counted = state_dict["counted"]


class Script:
    """A script, as its author has written it."""

    def __init__(self, folder: Path, *, stop_after: int = 0, interval: str = "step", **options: Any) -> None:
        torch.manual_seed(0)
        self.model = options.pop("model", None) or Line(interval)
        inputs = torch.arange(SIZE, dtype=torch.float32)[:, None] / SIZE
        self.data = TensorDataset(inputs, 3.0 * inputs)
        loader = DataLoader(
            self.data, batch_size=options.pop("batch", 4), shuffle=True, num_workers=options.pop("num_workers", 0)
        )
        self.steps = Steps(stop_after)
        given = {
            name: options.pop(name)
            for name in ("accumulate_grad_batches", "max_epochs", "max_steps")
            if name in options
        }
        plugins = options.pop("plugins", None)
        self.elastic = self.steps.elastic = MalleTrainCallback(
            loader, checkpoint_folder=folder, checkpoint_seconds=0.0, commit_seconds=0.0, **options
        )
        callbacks = [self.elastic, self.steps]
        own = {"max_epochs": EPOCHS, "plugins": plugins, "callbacks": callbacks, **QUIET, **given}
        self.trainer = L.Trainer(**own, **self.elastic.trainer_options)

    def train(self) -> None:
        self.trainer.fit(self.model, self.elastic.loader, DataLoader(self.data, batch_size=SIZE))

    @property
    def samples(self) -> int:
        assert self.elastic.training is not None
        return self.elastic.training.samples

    @property
    def weights(self) -> list[float]:
        return [value for tensor in self.model.state_dict().values() for value in tensor.flatten().tolist()]

    @property
    def counters(self) -> dict[str, Any]:
        """Lightning's own counters, which decide what comes next and what is saved."""
        loop = self.trainer.fit_loop
        return {
            "epoch": self.trainer.current_epoch,
            "steps": self.trainer.global_step,
            "epochs": loop.epoch_progress.state_dict(),
            "batches": {**loop.epoch_loop.batch_progress.state_dict()["total"]},
            "stepped": loop.epoch_loop._batches_that_stepped,
        }


def scaler() -> MixedPrecision:
    """As with fp16 on a GPU; it doubles its scale after every second step."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2))


def test_a_step_of_several_passes_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = record_reports(monkeypatch)
    script = Script(tmp_path, accumulate_grad_batches=2)
    script.train()
    assert reports == [(8, position) for position in range(8, 65, 8)]
    assert script.trainer.global_step == 8


def test_its_loss_is_logged_at_the_trainers_interval_and_what_is_validated_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = record_metrics(monkeypatch, "lightning")
    script = Script(tmp_path, accumulate_grad_batches=2)
    script.trainer.log_every_n_steps = 2
    script.train()
    names = [name for metrics, _ in found for name in metrics]
    assert names.count("train_loss") == 8 // 2
    assert names.count("loss") == EPOCHS
    assert all(value > 0 for metrics, _ in found for value in metrics.values())


def test_the_completed_job_has_the_metrics_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, float]] = []
    monkeypatch.setattr("malletrain.client.training.done", lambda metrics, _: found.append(metrics))
    script = Script(tmp_path)
    script.train()
    assert [metrics["loss"] for metrics in found] == [float(script.trainer.callback_metrics["loss"])]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interval": "epoch"},
        {"reference_batch": 8},
        {"reference_batch": 10, "hold_batch": True},
        {"accumulate_grad_batches": 2},
        {"num_workers": 2},
    ],
    ids=["plain", "scheduler of epochs", "scaled rates", "held batch", "accumulation", "loader processes"],
)
def test_an_interrupted_training_ends_like_one_that_is_not(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = Script(tmp_path / "whole", **options)
    whole.train()
    first = Script(tmp_path / "parts", stop_after=4, **options)
    with pytest.raises(InterruptedTrainingError):
        first.train()
    assert first.elastic.training is not None
    first.elastic.training.checkpoints.wait()
    second = Script(tmp_path / "parts", **options)
    second.train()
    begun = second.steps.seen[0][0]
    assert 0 < begun <= first.steps.seen[-1][0] + first.elastic.training.global_batch
    assert second.steps.seen == whole.steps.seen[-len(second.steps.seen) :]
    assert second.weights == whole.weights
    assert second.counters == whole.counters
    # The state of another callback goes on.
    assert second.steps.counted == whole.steps.counted == len(whole.steps.seen)


def test_the_state_of_the_precision_plugin_goes_on(tmp_path: Path) -> None:
    whole = Script(tmp_path / "whole", plugins=scaler())
    whole.train()
    first = Script(tmp_path / "parts", plugins=scaler(), stop_after=4)
    with pytest.raises(InterruptedTrainingError):
        first.train()
    assert first.elastic.training is not None
    first.elastic.training.checkpoints.wait()
    second = Script(tmp_path / "parts", plugins=scaler())
    second.train()
    assert 0 < second.steps.seen[0][0] < whole.steps.seen[-1][0]
    scales = [script.trainer.precision_plugin.state_dict()["scale"] for script in (whole, second)]
    assert scales[0] == scales[1] > 4.0
    assert second.weights == whole.weights


def test_rates_are_scaled_in_the_step_only(tmp_path: Path) -> None:
    script = Script(tmp_path, reference_batch=8, learning_rate_rule="linear")
    script.train()
    # The schedule counts steps of the reference batch.
    scheduled = [0.1 * (1 - step // 2 / 100) for step in range(EPOCHS * SIZE // 4)]
    assert script.steps.outside == pytest.approx(scheduled)
    # Half of the reference batch: half of the rate.
    assert [rate for _, _, rate in script.steps.seen] == pytest.approx([rate / 2 for rate in scheduled])


class Cycle(Line):
    """With a schedule of a fixed length, which the trainer tells."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=self.steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@pytest.mark.parametrize("options", [{}, {"reference_batch": 4}], ids=["plain", "scaled rates"])
def test_a_schedule_of_a_fixed_length_ends_with_the_training_at_any_batch(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rates: dict[int, float] = {}
    for batch, stop_after in ((4, 4), (2, 16), (8, 0)):
        script = Script(tmp_path, batch=batch, model=Cycle(), stop_after=stop_after, **options)
        if stop_after:
            with pytest.raises(InterruptedTrainingError):
                script.train()
            assert script.elastic.training is not None
            script.elastic.training.checkpoints.wait()
        else:
            script.train()
            assert script.samples >= EPOCHS * SIZE
        rates |= dict(zip((samples for samples, _, _ in script.steps.seen), script.steps.outside, strict=False))
    plain = Script(tmp_path / "plain", model=Cycle(), **options)
    plain.train()
    assert plain.model.steps == EPOCHS * SIZE // 4
    expected = dict(zip((samples for samples, _, _ in plain.steps.seen), plain.steps.outside, strict=False))
    shared = rates.keys() & expected.keys()
    assert len(shared) > 8
    assert [rates[at] for at in sorted(shared)] == pytest.approx([expected[at] for at in sorted(shared)])


def test_a_limit_of_steps_is_one_for_the_schedule(tmp_path: Path) -> None:
    script = Script(tmp_path, model=Cycle(), max_steps=7, reference_batch=8)
    script.train()
    assert script.model.steps == 7 == script.trainer.global_step


def test_another_object_goes_on(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        script = Script(tmp_path)
        averaged = nn.Linear(1, 1)
        nn.init.constant_(averaged.weight, value)
        script.elastic.register("averaged", averaged)
        script.train()
        assert averaged.weight.item() == 1.0


def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^loader: expected DataLoader"):
        MalleTrainCallback(DataLoader(TensorDataset(torch.zeros(4)), batch_size=None))
    script = Script(tmp_path)
    script.model.automatic_optimization = False
    with pytest.raises(ValueError, match=r"^configure_optimizers: expected one optimizer and automatic optimization"):
        script.train()
    script = Script(tmp_path)
    with pytest.raises(RuntimeError, match=r"^MalleTrainCallback: elastic\.loader can be used in Trainer\.fit only"):
        list(script.elastic.loader)


def test_what_divides_the_state_is_refused_by_name(tmp_path: Path) -> None:
    """Lightning has these strategies on GPUs only."""
    script = Script(tmp_path)
    strategy = script.trainer.strategy
    names = {"__module__": L.pytorch.strategies.FSDPStrategy.__module__}
    strategy.__class__ = type("FSDPStrategy", (type(strategy),), names)
    with pytest.raises(ValueError, match=r"^strategy: expected whole parameters in each worker, .* got FSDPStrategy: "):
        script.train()


def test_a_checkpoint_of_lightning_is_refused(tmp_path: Path) -> None:
    plain = L.Trainer(max_epochs=1, **QUIET)
    script = Script(tmp_path)
    plain.fit(Line(), DataLoader(script.data, batch_size=4))
    plain.save_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(ValueError, match=r"^ckpt_path: expected None"):
        script.trainer.fit(script.model, script.elastic.loader, ckpt_path=str(tmp_path / "own.ckpt"))


def test_a_batch_cannot_be_held_beside_an_accumulation_of_the_script(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^hold_batch: expected no accumulation of the script's own, got 2 passes"):
        Script(tmp_path, reference_batch=10, hold_batch=True, accumulate_grad_batches=2).train()


def test_validations_and_saves_are_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(TensorDataset(torch.ones(8, 1), torch.ones(8, 1)), batch_size=4)
    with recorded_phases(monkeypatch) as phases:
        elastic = MalleTrainCallback(loader, checkpoint_folder=tmp_path / "own")
        options = {**QUIET, "enable_checkpointing": True, "default_root_dir": tmp_path}
        trainer = L.Trainer(max_epochs=1, callbacks=[elastic], **options, **elastic.trainer_options)
        trainer.fit(Line(), elastic.loader, loader)
    assert phases == ["evaluate", "save"]
