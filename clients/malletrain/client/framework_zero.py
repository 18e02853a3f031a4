"""Trainings whose loop belongs to a framework, and whose state DeepSpeed's ZeRO divides among the workers.

It follows the loop as `malletrain.client.framework_training` does, and keeps the state as `malletrain.client.deepspeed`
does. It is apart from both, so that DeepSpeed is imported only where a script makes use of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
import torch.distributed as dist

from malletrain.client.deepspeed import DeepSpeedTraining, init, without_shared_memory
from malletrain.client.framework_training import FollowedTraining, LoaderPlan, TrainingOptions
from malletrain.client.lr_scaling import LearningRates, ScalingRule

__all__ = ["FrameworkZeroTraining", "begin_group", "check_config", "fill_config"]


def begin_group() -> None:
    """Initialise the process group, unless the script has; see `malletrain.client.deepspeed.init`."""
    if dist.is_initialized():
        without_shared_memory()
    else:
        init()


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse what a framework would build before an engine can be looked at.

    Args:
        config: DeepSpeed's, as a plugin of the framework has it.

    Raises:
        ValueError: the configuration has what belongs into the script, or an optimizer would be replaced.
    """
    for name in ("optimizer", "scheduler"):
        if name in config:
            kind = config[name].get("type", "one")
            raise ValueError(f"deepspeed_plugin: {name}: expected none (give prepare one of torch), got {kind}")
    device = config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none")
    if device != "none" and config.get("zero_force_ds_cpu_optimizer", True):
        expected = "expected zero_force_ds_cpu_optimizer: false with offload_optimizer"
        raise ValueError(f"deepspeed_plugin: {expected} (the script's optimizer would be replaced), got true")


def fill_config(config: dict[str, Any], batch: int, workers: int) -> None:
    """Set the sizes that a framework derives from a loader, and that change with the number of workers.

    Args:
        config: DeepSpeed's, as a plugin of the framework has it.
        batch: Samples per worker and pass.
        workers: Number of workers at the present scale.
    """
    config |= {"train_micro_batch_size_per_gpu": batch, "train_batch_size": batch * workers}
    # The passes of a step are those of the training: as many as there have to be at the present scale.
    config["gradient_accumulation_steps"] = 1


class FrameworkZeroTraining(FollowedTraining, DeepSpeedTraining):
    """A training that a framework drives, with an engine of DeepSpeed: `backward` makes the steps, too."""

    def __init__(self, engine: Any, plan: LoaderPlan, micro_steps: int = 1, **options: Unpack[TrainingOptions]) -> None:
        """Load the newest checkpoint, if there is one, divided among the present workers.

        Args:
            engine: What `deepspeed.initialize` has returned first, without the framework's wrapper.
            plan: The script's loader.
            micro_steps: Passes of a worker in one step, as the framework has been told.
            options: As for `Training`.

        Raises:
            ValueError: an option is out of its range, or the engine has what can't be divided anew.
        """
        self._follow_plan(plan, micro_steps, hold_batch=bool(options.get("hold_batch")))
        super().__init__(engine, dataset_size=plan.size, batch_per_worker=plan.batch, **options)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Add up the gradients of a pass; with the last one of a step, apply them.

        Args:
            loss: The mean loss of the pass.
            options: Those of the engine's `backward`.
        """
        last = self.is_last_pass
        self.engine.set_gradient_accumulation_boundary(last)
        # The engine knows of one pass only, so it does not take the mean of several.
        self.engine.backward(loss * (self.pass_factor() / self.micro_steps), **options)
        if last:
            self.before_step()
            with self._rates.scaled(self.optimizer.param_groups):
                self._apply_gradients()

    def _make_rates(
        self, optimizer: torch.optim.Optimizer, reference_batch: int | None, rule: ScalingRule, warmup_samples: int
    ) -> LearningRates:
        rates = LearningRates(optimizer.param_groups, reference_batch, rule, warmup_samples)
        # A scheduler may be the framework's: rates are scaled during steps only.
        rates.leave_to_schedule()
        return rates

    def _before_pass(self, module: torch.nn.Module, inputs: object) -> None:
        """Say which pass the engine's own hooks see."""
        del module, inputs
        if torch.is_grad_enabled():
            self.engine.set_gradient_accumulation_boundary(self.is_last_pass)
