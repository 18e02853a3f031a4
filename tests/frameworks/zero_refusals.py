"""Engines whose state could not be divided anew, and checkpoints that do not fit: what the one process is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from malletrain.client import current_job
from malletrain.client.deepspeed import DeepSpeedTraining, init
from malletrain.client.framework_training import FrameworkTraining, LoaderPlan
from malletrain.client.fsdp import ShardedTraining
from tests.frameworks.zero_trainer import Network, optimizer_of

SIZES: dict[str, Any] = {"dataset_size": 48, "batch_per_worker": 12}


class Blocks(torch.optim.SGD):
    """An optimizer whose state does not belong to single weights."""

    def step(self, closure: Any = None) -> None:
        """As SGD's."""
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["blocks"] = torch.zeros(2, 2)


def engine_of(
    model: nn.Module | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    zero: dict[str, Any] | None = None,
    **config: Any,
) -> Any:
    """An engine, by default of stage 2, with two groups of parameters."""
    model = model or Network()
    chosen = optimizer(model.parameters()) if optimizer else optimizer_of(model, "adamw")
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 12,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    settings |= {"zero_optimization": {"stage": 2, **(zero or {})}, "zero_force_ds_cpu_optimizer": False, **config}
    return deepspeed.initialize(model=model, optimizer=chosen, config=settings)[0]


def train(
    training: Any, model: Callable[[torch.Tensor], torch.Tensor], backward: Callable[[torch.Tensor], Any]
) -> None:
    """Two batches, and a checkpoint."""

    @training.run
    def loop() -> None:
        for _ in training.batches(24):
            backward(model(torch.ones(12, 7)).square().mean())
            training.step()

    training.finish()


def main() -> None:
    """Try them all."""
    job = current_job()
    assert job is not None
    init()
    folder = Path(job.directory)
    other = dict(checkpoint_folder=folder / "other", **SIZES)
    found: dict[str, str] = {}

    def told(case: str, make: Callable[[], object]) -> None:
        try:
            make()
        except (ValueError, RuntimeError) as error:
            found[case] = str(error)

    told("no engine", lambda: DeepSpeedTraining(nn.Linear(1, 1), **SIZES))
    for case, options in {
        "stage 0": {"zero": {"stage": 0}},
        "accumulation": {"gradient_accumulation_steps": 2},
        "scheduler": {"scheduler": {"type": "WarmupLR", "params": {}}},
    }.items():
        told(case, lambda options=options: DeepSpeedTraining(engine_of(**options), **SIZES))
    for part in ("offload_optimizer", "offload_param"):
        # An engine that makes use of it needs a disk and libaio; one whose configuration says so does not.
        engine = engine_of(zero={"stage": 3, part: {"device": "cpu"}})
        getattr(engine._config.zero_config, part).device = "nvme"
        told(part, lambda engine=engine: DeepSpeedTraining(engine, **SIZES))
    loader = LoaderPlan(DataLoader(TensorDataset(torch.ones(48, 7)), 12))
    told("framework", lambda: FrameworkTraining(Network(), engine_of().optimizer, loader))
    told("loss scaler", lambda: DeepSpeedTraining(engine_of(), grad_scaler=torch.amp.GradScaler("cpu"), **SIZES))

    engine = engine_of()
    train(DeepSpeedTraining(engine, **SIZES), engine, engine.backward)
    told("other groups", lambda: DeepSpeedTraining(engine_of(optimizer=torch.optim.AdamW), **SIZES))
    smaller = Network()
    smaller.layers[0] = nn.Linear(7, 12)
    smaller.layers[2] = nn.Linear(12, 3)
    told("other weights", lambda: DeepSpeedTraining(engine_of(smaller), **SIZES))

    sharded = nn.Linear(7, 3)
    fully_shard(sharded)
    training = ShardedTraining(sharded, torch.optim.AdamW(sharded.parameters()), **other)
    train(training, sharded, torch.Tensor.backward)
    told("other checkpoint", lambda: DeepSpeedTraining(engine_of(), **other))

    blocks = engine_of(optimizer=Blocks)
    own = dict(checkpoint_folder=folder / "blocks", **SIZES)
    told("other optimizer", lambda: train(DeepSpeedTraining(blocks, **own), blocks, blocks.backward))
    Path(folder, "refusals.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
