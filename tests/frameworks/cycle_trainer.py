"""A small training with a framework, or without one, and OneCycleLR over its whole length; it notes where that ends."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

SIZE, EPOCHS, PER_WORKER = 192, 2, 4


def data() -> TensorDataset:
    """Inputs and targets of a line."""
    inputs = torch.arange(SIZE, dtype=torch.float32)[:, None] / SIZE
    return TensorDataset(inputs, 3.0 * inputs)


def cycle(optimizer: torch.optim.Optimizer, steps: float) -> OneCycleLR:
    """A schedule of so many steps."""
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=int(steps))


def with_lightning() -> OneCycleLR:
    """With the number of steps that the trainer estimates."""
    import lightning as L  # noqa: N812  # as in Lightning's documentation, and only where it is used

    from malletrain.client.lightning import MalleTrainCallback

    found: list[OneCycleLR] = []

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> object:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
            found.append(cycle(optimizer, self.trainer.estimated_stepping_batches))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": found[0], "interval": "step"}}

    elastic = MalleTrainCallback(DataLoader(data(), PER_WORKER, shuffle=True))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    L.Trainer(max_epochs=EPOCHS, callbacks=[elastic], **elastic.trainer_options, **quiet).fit(Module(), elastic.loader)
    return found[0]


def with_transformers() -> OneCycleLR:
    """With a scheduler of the script's own, over steps of the batch of one worker."""
    from transformers import Trainer, TrainingArguments

    from malletrain.client.transformers import MalleTrainCallback

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.layer(inputs), labels)}

    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = cycle(optimizer, SIZE * EPOCHS // PER_WORKER)
    samples = [{"inputs": inputs, "labels": labels} for inputs, labels in data()]
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    arguments = TrainingArguments(
        tempfile.gettempdir(), num_train_epochs=EPOCHS, per_device_train_batch_size=PER_WORKER, **quiet
    )
    trainer = Trainer(model, arguments, train_dataset=samples, optimizers=(optimizer, scheduler))
    trainer.add_callback(MalleTrainCallback(trainer))
    trainer.train()
    return scheduler


def with_accelerate() -> OneCycleLR:
    """With a scheduler that is prepared, over the batches of one process, as Accelerate wants it."""
    from malletrain.client.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data(), PER_WORKER, shuffle=True)
    scheduler = cycle(optimizer, EPOCHS * len(loader))
    wrapped, prepared, batches, stepped = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in accelerator.epochs(EPOCHS):
        for inputs, targets in batches:
            accelerator.backward(nn.functional.mse_loss(wrapped(inputs), targets))
            prepared.step()
            stepped.step()
            prepared.zero_grad()
    accelerator.end_training()
    return scheduler


def with_the_helper() -> OneCycleLR:
    """As docs/client.md has it, with a number of steps that depends on the scale."""
    from malletrain.client.elastic import ElasticTraining, init

    init()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training = ElasticTraining(model, optimizer, dataset_size=SIZE, batch_per_worker=PER_WORKER)
    scheduler = cycle(optimizer, SIZE * EPOCHS // (PER_WORKER * training.workers))
    training.register("scheduler", scheduler)
    inputs, targets = data().tensors

    @training.run
    def train() -> None:
        while training.samples < SIZE * EPOCHS:
            indices = training.next_indices()
            training.optimizer.zero_grad()
            nn.functional.mse_loss(training.model(inputs[indices]), targets[indices]).backward()
            training.step(scheduler.step)

    training.finish()
    return scheduler


WAYS: dict[str, Callable[[], OneCycleLR]] = {
    "lightning": with_lightning,
    "transformers": with_transformers,
    "accelerate": with_accelerate,
    "elastic": with_the_helper,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    end = WAYS[sys.argv[1]]()
    note = {"steps": end.last_epoch, "of": end.total_steps, "rate": end.get_last_lr()[0]}
    if os.environ["RANK"] == "0":
        Path(os.environ["MALLETRAIN_JOB_DIR"], "schedule.json").write_text(json.dumps(note))
