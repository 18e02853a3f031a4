"""Plugins, optimizers and schedulers of DeepSpeed that no elastic training follows: what the one process is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import DeepSpeedPlugin
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DummyOptim, DummyScheduler
from deepspeed.runtime.lr_schedules import WarmupLR
from torch.utils.data import DataLoader

from malletrain.client import current_job
from malletrain.client.accelerate import ElasticAccelerator
from tests.frameworks.zero_accelerator import Numbered
from tests.frameworks.zero_trainer import Network, optimizer_of, schedule_of


def accelerator_of(zero: dict[str, Any] | None = None, plugin: Any = None, **config: Any) -> ElasticAccelerator:
    """A new one, by default of stage 2."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    own = {name: config.pop(name) for name in ("cpu", "hold_batch", "gradient_accumulation_steps") if name in config}
    sizes = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    settings = {**sizes, "zero_optimization": {"stage": 2, **(zero or {})}, **config}
    return ElasticAccelerator(
        deepspeed_plugin=plugin or DeepSpeedPlugin(hf_ds_config=settings), reference_batch=12, **own
    )


def prepare(
    accelerator: ElasticAccelerator,
    optimizer: Callable[[Network], Any] | None = None,
    scheduler: Callable[[Any], Any] = schedule_of,
) -> None:
    """Prepare a training."""
    model = Network()
    chosen = optimizer_of(model, "adamw")
    given = optimizer(model) if optimizer else chosen
    accelerator.prepare(model, given, DataLoader(Numbered(), batch_size=12), scheduler(chosen))


def main() -> None:
    """Try them all."""
    job = current_job()
    assert job is not None
    found: dict[str, str] = {}

    def told(case: str, make: Callable[[], object]) -> None:
        try:
            make()
        except ValueError as error:
            found[case] = str(error)

    told("cpu", lambda: accelerator_of(cpu=True))
    told("several", lambda: accelerator_of(plugin={"one": DeepSpeedPlugin(zero_stage=2)}))
    told("optimizer", lambda: accelerator_of(optimizer={"type": "AdamW", "params": {}}))
    told("scheduler", lambda: accelerator_of(scheduler={"type": "WarmupLR", "params": {}}))
    told("offload", lambda: accelerator_of(zero={"offload_optimizer": {"device": "cpu"}}))
    told("DummyOptim", lambda: prepare(accelerator_of(), lambda model: DummyOptim(model.parameters())))
    told("DummyScheduler", lambda: prepare(accelerator_of(), scheduler=DummyScheduler))
    told("WarmupLR", lambda: prepare(accelerator_of(), scheduler=WarmupLR))
    told("held batch", lambda: prepare(accelerator_of(hold_batch=True, gradient_accumulation_steps=2)))
    told("stage 0", lambda: prepare(accelerator_of(zero={"stage": 0})))
    Path(job.directory, "refusals.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
