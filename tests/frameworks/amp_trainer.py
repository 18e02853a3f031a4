"""A small training in bfloat16 with a framework, with a held batch; it notes its weights at the end."""

from __future__ import annotations

import argparse
import json
import os
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


WAYS: dict[str, Callable[[nn.Module, DataLoader[Any], int], None]] = {
    "lightning": with_lightning,
    "accelerate": with_accelerate,
}


def main() -> None:
    """Train, and note the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=WAYS)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = network()
    WAYS[options.framework](model, DataLoader(TensorDataset(*data()), PER_WORKER, shuffle=True), options.epochs)
    if os.environ["RANK"] == "0":
        Path(os.environ["MALLETRAIN_JOB_DIR"], "weights.json").write_text(json.dumps(whole(model)))


if __name__ == "__main__":
    main()
