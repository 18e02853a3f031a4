"""A small training in bfloat16 with a framework, a held batch and loader processes; it notes its weights at the end."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.training.amp_trainer import BATCH, data, network, optimizer_of, whole

PER_WORKER = 4
"""Samples of a pass: 2, 1 or 3 passes of a step for 2, 3 or 1 workers, not all of the same size."""
OPTIONS: dict[str, Any] = {"reference_batch": BATCH, "hold_batch": True, "seed": 3}
ON_COMMAND: dict[str, Any] = {"commit_seconds": 1e6, "checkpoint_seconds": 1e6}
"""Nothing is saved on the way unless that is asked for."""


class Line(TensorDataset):
    """Inputs and targets; reading one takes a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(*data())
        self.seconds = seconds

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, ...]:
        """One sample."""
        time.sleep(self.seconds)
        return super().__getitem__(index)


class WithLoss(nn.Module):
    """A model that returns its loss, as Transformers has them."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The mean loss of a batch."""
        return {"loss": nn.functional.mse_loss(self.layers(inputs), labels)}


def with_lightning(model: nn.Module, loader: DataLoader[Any], epochs: int) -> None:
    """Train with Lightning."""
    import lightning as L  # noqa: N812  # as in Lightning's documentation, and only where it is used

    from malletrain.client.lightning import MalleTrainCallback

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.layers)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    elastic = MalleTrainCallback(loader, **OPTIONS)
    own = {"accelerator": "cpu", "precision": "bf16-mixed", "max_epochs": epochs, "callbacks": [elastic]}
    L.Trainer(**own, **elastic.trainer_options, **quiet).fit(Module(), elastic.loader)


def with_accelerate(model: nn.Module, loader: DataLoader[Any], epochs: int) -> None:
    """Train with Accelerate."""
    from malletrain.client.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(cpu=True, mixed_precision="bf16", **OPTIONS)
    wrapped, optimizer, prepared = accelerator.prepare(model, optimizer_of(model), loader)
    for _ in accelerator.epochs(epochs):
        for inputs, targets in prepared:
            with accelerator.accumulate(wrapped):
                accelerator.backward(nn.functional.mse_loss(wrapped(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
    accelerator.end_training()


def with_transformers(model: nn.Module, loader: DataLoader[Any], epochs: int) -> None:
    """Train with Transformers."""
    from transformers import Trainer, TrainingArguments

    from malletrain.client.transformers import MalleTrainCallback

    quiet: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    own = {"num_train_epochs": epochs, "per_device_train_batch_size": PER_WORKER, "max_grad_norm": 0.0, "bf16": True}
    arguments = TrainingArguments(
        tempfile.gettempdir(), dataloader_num_workers=loader.num_workers, **own, **quiet, remove_unused_columns=False
    )
    optimizer = optimizer_of(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        inputs, labels = (torch.stack(column) for column in zip(*samples, strict=True))
        return {"inputs": inputs, "labels": labels}

    trainer = Trainer(
        WithLoss(model), arguments, collate, train_dataset=loader.dataset, optimizers=(optimizer, constant)
    )
    trainer.add_callback(MalleTrainCallback(trainer, **OPTIONS))
    trainer.train()


WAYS: dict[str, Callable[[nn.Module, DataLoader[Any], int], None]] = {
    "lightning": with_lightning,
    "accelerate": with_accelerate,
    "transformers": with_transformers,
}


def main() -> None:
    """Train, and note the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=WAYS)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--loader-processes", type=int, default=0)
    parser.add_argument("--sample-seconds", type=float, default=0.0, help="time to read a sample")
    parser.add_argument("--on-command", action="store_true", help="save only when that is asked for")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.on_command:
        OPTIONS.update(ON_COMMAND)
    model = network()
    loader = DataLoader(Line(options.sample_seconds), PER_WORKER, shuffle=True, num_workers=options.loader_processes)
    WAYS[options.framework](model, loader, options.epochs)
    if os.environ["RANK"] == "0":
        Path(os.environ["MALLETRAIN_JOB_DIR"], "weights.json").write_text(json.dumps(whole(model)))


if __name__ == "__main__":
    main()
