"""A language model of Transformers by Accelerate and ZeRO 3, divided among the workers while it is made."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from accelerate import DeepSpeedPlugin
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch.utils.data import DataLoader, TensorDataset

from malletrain.client import current_job
from malletrain.client.accelerate import ElasticAccelerator
from tests.frameworks.zero_trainer import BATCH, SIZE, digest, gathered

WORDS, LENGTH = 31, 8


def whole_state(model: torch.nn.Module, keys: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """All weights and the optimizer's state in full precision, by DeepSpeed's own functions; all workers call it."""
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        found[name] = safe_get_full_fp32_param(parameter)
        for key in keys:
            found[f"{name} {key}"] = safe_get_full_optimizer_state(parameter, key)
    return found


def main() -> None:
    """Train, and note what happens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    options = parser.parse_args()
    job = current_job()
    assert job is not None
    plugin = DeepSpeedPlugin(zero_stage=3, zero3_init_flag=True, gradient_clipping=1.0)
    accelerator = ElasticAccelerator(deepspeed_plugin=plugin, reference_batch=BATCH, seed=3, checkpoint_seconds=30.0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=12, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config)
    assert all(hasattr(one, "ds_id") for one in made.parameters()), "it is divided before it is prepared"
    ids = torch.randint(WORDS, (SIZE, LENGTH), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(ids), batch_size=BATCH // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(made, torch.optim.AdamW(made.parameters(), 0.01), loader)
    training, path = accelerator.started, Path(job.directory, f"notes-{os.getpid()}.jsonl")

    def note(event: str, **more: Any) -> None:
        line = {"event": event, "samples": training.samples, "workers": accelerator.num_processes, **more}
        has_state = event == "stepped" or training.samples > 0
        state = whole_state(made, ("exp_avg", "exp_avg_sq") if has_state else ())
        line |= {"rank": dist.get_rank(), "digest": digest(state)}
        if dist.get_rank() == 0 or event == "loaded":
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    note = accelerator.or_save(note)
    begun = False
    for _ in accelerator.epochs(-(-options.samples // SIZE)):
        for (batch,) in loader:
            if not begun:
                note("loaded")
                begun = True
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses = accelerator.or_save(gathered)(loss.item())
            note("stepped", loss=sum(losses) / len(losses))
            if training.samples + BATCH >= options.samples:
                break
            time.sleep(options.step_seconds)
        if training.samples >= options.samples:
            break
    accelerator.log({"workers": accelerator.num_processes})
    accelerator.end_training()


if __name__ == "__main__":
    main()
