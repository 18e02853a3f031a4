"""A small model with DeepSpeed's ZeRO that notes its whole state, read by DeepSpeed, and what it has trained with."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

from malletrain.client import current_job
from malletrain.client.deepspeed import DeepSpeedTraining, init

SIZE, BATCH = 240, 12
"""Samples, and the global batch at every scale: it can be divided by 1, 2 and 3."""
RATE = 0.01


class Network(nn.Module):
    """Two layers, whose weights can't be divided evenly by 2 and 3, and what an optimizer does not change."""

    def __init__(self, unlike: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3))
        # Each start has another one; that of the checkpoint counts.
        self.frozen = nn.Parameter(torch.linspace(0.5, 1.5, 7) + unlike, requires_grad=False)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Three numbers for seven."""
        if torch.is_grad_enabled():
            self.passes += 1
        found: torch.Tensor = self.layers(inputs * self.frozen)
        return found


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 7, generator=generator), torch.randn(SIZE, 3, generator=generator)


def optimizer_of(model: Network, name: str) -> torch.optim.Optimizer:
    """An optimizer with two groups."""
    decayed, plain = ([one for one in model.layers.parameters() if (one.ndim > 1) is wide] for wide in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, RATE, momentum=0.9) if name == "sgd" else torch.optim.AdamW(groups, RATE)


def schedule_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Rates that fall with each batch."""
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def whole_state(model: nn.Module, keys: tuple[str, ...]) -> dict[str, Any]:
    """All weights and the optimizer's state in full precision, by DeepSpeed's own functions; all workers call it."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[name] = safe_get_full_fp32_param(parameter)
            for key in keys:
                found[f"{name} {key}"] = safe_get_full_optimizer_state(parameter, key)
    with deepspeed.zero.GatheredParameters([model.frozen]):
        found["frozen"] = model.frozen.detach().float().clone()
    return found


def digest(state: dict[str, torch.Tensor]) -> str:
    """Of all bits."""
    return hashlib.sha256(b"".join(state[name].contiguous().numpy().tobytes() for name in sorted(state))).hexdigest()


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--per-worker", type=int, default=0, help="0: the same global batch at every scale")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--persist", type=int, default=100_000, help="largest parameter that stage 3 keeps whole")
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    return parser.parse_args()


class Notes:
    """What is noted of a training, by every process in a file of its own."""

    def __init__(self, folder: Path, training: Any, model: Network, options: argparse.Namespace) -> None:
        self._path = folder / f"notes-{os.getpid()}.jsonl"
        self._training, self._model, self._stage = training, model, options.stage
        self._keys = ("momentum_buffer",) if options.optimizer == "sgd" else ("exp_avg", "exp_avg_sq")

    def note(self, event: str, **more: Any) -> None:
        """Note the whole state; all workers call it."""
        training, zero = self._training, self._training.engine.optimizer
        rank, workers = dist.get_rank(), dist.get_world_size()
        has_state = event == "stepped" or training.samples > 0
        if has_state and self._stage < 3:
            # DeepSpeed 0.19 links the states of all groups after the first group's step: the others have none yet.
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()
        line = {"event": event, "rank": rank, "workers": workers, "samples": training.samples, **more}
        line["digest"] = digest(whole_state(self._model, self._keys if has_state else ()))
        line |= {"passes": int(self._model.passes), "scale": float(zero.loss_scaler.cur_scale)}
        line |= {"rate": training.optimizer.param_groups[0]["lr"], "engine_steps": training.engine.global_steps}
        line |= {"numbers": {key: float(value) for key, value in _numbers(training.optimizer).items()}}
        line |= {"random": zlib.crc32(torch.get_rng_state().numpy().tobytes())}
        if rank == 0 or event == "loaded":
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def gathered(value: Any) -> list[Any]:
    """That of all workers."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main() -> None:
    """Train, and note what happens."""
    options = parsed()
    job = current_job()
    assert job is not None
    inputs, targets = data()
    init()
    workers = dist.get_world_size()
    model = Network(unlike=0.25 if any(Path(job.directory).glob("notes-*")) else 0.0)
    optimizer = optimizer_of(model, options.optimizer)
    zero = {"stage": options.stage, "stage3_param_persistence_threshold": options.persist}
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "steps_per_print": 10**9}
    config |= {"zero_force_ds_cpu_optimizer": False, "gradient_clipping": 1.0}
    if options.offload:
        parts = ("offload_optimizer", "offload_param") if options.stage == 3 else ("offload_optimizer",)
        zero |= {part: {"device": "cpu"} for part in parts}
    config["zero_allow_untested_optimizer"] = True
    if options.precision != "fp32":
        config[options.precision] = {"enabled": True}
    if options.precision == "fp16":
        config["fp16"] |= {"initial_scale_power": 4, "loss_scale_window": 2}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    training = DeepSpeedTraining(
        engine,
        dataset_size=SIZE,
        batch_per_worker=options.per_worker or BATCH // workers,
        reference_batch=BATCH,
        hold_batch=options.hold,
        seed=3,
        # Commits may be saved as well, so that a test would have more checkpoints than it asks for.
        commit_seconds=options.checkpoint_seconds,
        checkpoint_seconds=options.checkpoint_seconds,
    )
    schedule = schedule_of(optimizer)
    training.register("schedule", schedule)
    noted = Notes(Path(job.directory), training, model, options)

    def one_pass(indices: list[int], factor: float) -> float:
        outputs = engine(inputs[indices].to(engine.get_data_types()[0])).float()
        loss = nn.functional.mse_loss(outputs, targets[indices]) * factor
        engine.backward(loss)
        return float(loss)

    @training.run
    def train() -> None:
        noted.note("loaded")
        while training.samples < options.samples:
            began = time.monotonic()
            passes = list(training.micro_batches()) if options.hold else [(training.next_indices(), 1.0)]
            torch.rand(1)  # as dropout does
            losses = gathered(sum(one_pass(*one) for one in passes))
            more = {"loss": sum(losses) / workers, "indices": []}
            for used in gathered([index for indices, _ in passes for index in indices]):
                more["indices"] += used
            # Before the check in it: a worker may end there.
            training.step(schedule.step, functools.partial(noted.note, "stepped", **more))
            time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))

    training.finish({"workers": workers})


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the optimizer keeps for all weights together, as the number of its steps."""
    state = next(iter(optimizer.state.values()), {})
    return {key: value for key, value in state.items() if not isinstance(value, torch.Tensor) or value.ndim == 0}


if __name__ == "__main__":
    main()
