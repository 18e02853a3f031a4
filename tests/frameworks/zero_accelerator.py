"""The model of `zero_trainer` with Accelerate's DeepSpeed plugin: a loop as its author has written it, and notes."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import DeepSpeedPlugin
from torch import nn
from torch.utils.data import DataLoader, Dataset

from malletrain.client import current_job
from malletrain.client.accelerate import ElasticAccelerator
from tests.frameworks.zero_trainer import BATCH, SIZE, Network, Notes, data, gathered, optimizer_of, schedule_of


class Numbered(Dataset[Any]):
    """Inputs and targets with their places."""

    def __init__(self) -> None:
        self._inputs, self._targets = data()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self._inputs[index], self._targets[index]


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="no")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--hold", action="store_true", help="passes of at most 4 samples")
    parser.add_argument("--accumulate", action="store_true", help="two passes of a step, as the script says")
    parser.add_argument("--by-environment", action="store_true", help="as `accelerate launch --use_deepspeed`")
    parser.add_argument("--by-file", action="store_true", help="as `accelerate launch --deepspeed_config_file`")
    parser.add_argument(
        "--offload", action="store_true", help="optimizer, with stage 3 weights, too, in the CPU's memory"
    )
    parser.add_argument("--reference", type=int, default=BATCH, help="the batch that the rates fit")
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    return parser.parse_args()


def write_file(options: argparse.Namespace) -> Path:
    """A configuration of DeepSpeed with the word for what Accelerate knows, as people keep them beside a script."""
    zero: dict[str, Any] = {"stage": options.stage, "overlap_comm": False, "reduce_bucket_size": 500_000}
    if options.stage == 3:
        zero |= {"stage3_param_persistence_threshold": 10, "stage3_gather_16bit_weights_on_model_save": "auto"}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        if options.stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": False}
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    content = {
        **dict.fromkeys(names, "auto"),
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": "auto"},
        "steps_per_print": 2000,
    }
    path = Path(tempfile.mkdtemp()) / "zero.json"
    path.write_text(json.dumps(content))
    return path


def accelerator_of(options: argparse.Namespace) -> ElasticAccelerator:
    """Where the plugin comes from an argument or from variables."""
    own: dict[str, Any] = {"gradient_accumulation_steps": 2 if options.accumulate else 1}
    if options.by_file:
        os.environ.update(
            {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(write_file(options))}
        )
    elif options.by_environment:
        names = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(options.stage)}
        os.environ.update({**names, "ACCELERATE_GRADIENT_CLIPPING": "1.0"})
    else:
        own["deepspeed_plugin"] = DeepSpeedPlugin(zero_stage=options.stage, gradient_clipping=1.0)
    seconds = {"commit_seconds": options.checkpoint_seconds, "checkpoint_seconds": options.checkpoint_seconds}
    return ElasticAccelerator(
        mixed_precision=options.precision,
        reference_batch=options.reference,
        hold_batch=options.hold,
        seed=3,
        # One step of the schedule for each one of the optimizer, at every scale.
        step_scheduler_with_optimizer=options.hold,
        **seconds,
        **own,
    )


def main() -> None:
    """Train, and note what happens."""
    options = parsed()
    job = current_job()
    assert job is not None
    accelerator = accelerator_of(options)
    workers = accelerator.num_processes
    plain = Network(unlike=0.25 if any(Path(job.directory).glob("notes-*")) else 0.0)
    optimizer = optimizer_of(plain, options.optimizer)
    per_pass = 4 if options.hold else BATCH // workers // (2 if options.accumulate else 1)
    loader = DataLoader(Numbered(), batch_size=per_pass, shuffle=True)
    schedule = schedule_of(optimizer)
    model, optimizer, loader, schedule = accelerator.prepare(plain, optimizer, loader, schedule)
    assert accelerator.unwrap_model(model) is plain
    training = accelerator.started
    note = accelerator.or_save(Notes(Path(job.directory), training, plain, options).note)
    seen: list[tuple[int, float]] = []
    begun = False
    for _ in accelerator.epochs(-(-options.samples // SIZE)):
        # The batch in which the script leaves the loop counts.
        for indices, inputs, targets in loader:
            if not begun:
                note("loaded")
                begun = True
            with accelerator.accumulate(model):
                if accelerator.sync_gradients:
                    torch.rand(1)  # as dropout does
                outputs = model(inputs.to(model.get_data_types()[0])).float()
                loss = nn.functional.mse_loss(outputs, targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                seen += [(int(index), loss.item()) for index in indices]
                if not accelerator.sync_gradients:
                    continue
                schedule.step()
                # Exchanges of the script's own: a worker may be lost there as well.
                used = [one for part in accelerator.or_save(gathered)(seen) for one in part]
                mean = sum(one for _, one in used) / len(used)
                note("stepped", loss=mean, indices=[index for index, _ in used])
                seen = []
            if training.samples + BATCH >= options.samples:
                break
            time.sleep(options.step_seconds)
        if training.samples >= options.samples:
            break
    accelerator.log({"workers": workers})
    accelerator.end_training()


if __name__ == "__main__":
    main()
