"""Elastic trainings with PyTorch Lightning: a callback.

```python
elastic = MalleTrainCallback(loader, reference_batch=64)
trainer = L.Trainer(max_epochs=10, callbacks=[elastic], **elastic.trainer_options)
trainer.fit(model, elastic.loader, val_loader)
```
"""

from __future__ import annotations

import copy
import math
import os
from typing import Any, Unpack

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from malletrain.client import install_signal_handler, log_metrics, phase
from malletrain.client.extra_state import Stateful
from malletrain.client.framework_training import NO_FSDP, FrameworkTraining, LoaderPlan, TrainingOptions
from malletrain.client.metric_log import numbers_of
from malletrain.client.phases import EVALUATE, SAVE
from malletrain.client.sampling import EpochBatches
from malletrain.client.schedules import is_schedule

_TRAIN_LOSS = "train_loss"
_DIVIDING = (".fsdp", ".model_parallel")
"""Ends of the names of modules with strategies by which workers have parts of the state."""


class MalleTrainCallback(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked.
    """Makes a `Trainer` elastic: loads, counts, reports, saves and leaves.

    Attributes:
        loader: The data loader for `Trainer.fit`. One iteration over it goes on from the present sample to the end of
            the epoch.
        training: The training, from `on_fit_start` on.
    """

    training: FrameworkTraining | None = None

    def __init__(self, loader: DataLoader[Any], **options: Unpack[TrainingOptions]) -> None:
        """Take the script's data loader, with the batch of one worker.

        Args:
            loader: A `DataLoader` of a map-style data set, with `batch_size` and `shuffle`.
            options: As for `malletrain.client.training.Training`: `reference_batch`, `learning_rate_rule`,
                `warmup_samples`, `hold_batch`, `seed`, when to save, and what is kept.

        Raises:
            ValueError: the loader is of another kind.
        """
        self._options = options
        self._plan = LoaderPlan(loader)
        self.loader = self._plan.loader(EpochBatches(lambda: self._started))
        self._registered: dict[str, Stateful] = {}
        self._validation = phase(EVALUATE)
        self._logged_step = 0

    @property
    def trainer_options(self) -> dict[str, Any]:
        """Arguments of `Trainer` for the launcher's workers; outside a launcher, for one process."""
        options: dict[str, Any] = {"use_distributed_sampler": False}
        if "WORLD_SIZE" in os.environ:
            workers = int(os.environ["WORLD_SIZE"])
            local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            options |= {"strategy": "ddp", "devices": local, "num_nodes": workers // local}
        return options

    def register(self, name: str, thing: Stateful) -> None:
        """Make another object's state part of the training; see `Training.register`. Call it before `fit`."""
        self._registered[name] = thing

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the trainer know how many steps there are, before `configure_optimizers` asks for it."""
        if stage == "fit" and trainer.max_epochs not in (None, -1):
            _tell_steps(trainer, self._estimated_steps(trainer))

    def _estimated_steps(self, trainer: Trainer) -> int:
        """Steps of a schedule: of `reference_batch` samples or else of the present scale, if it follows samples."""
        reference = self._options.get("reference_batch")
        sampler = self._plan.sampler(0, None, trainer.accumulate_grad_batches)
        sampler.set_scale(trainer.global_rank, trainer.world_size)
        present: int = sampler.partition.global_batch
        epochs, most_steps = int(trainer.max_epochs), int(trainer.max_steps)
        if _counts_samples(trainer):
            return math.ceil(self._plan.size * epochs / (reference or present))
        step = reference if reference and self._options.get("hold_batch") else present
        limit = trainer.limit_train_batches
        in_epoch = limit / trainer.accumulate_grad_batches if isinstance(limit, int) else self._plan.size * limit / step
        steps: int = math.ceil(in_epoch) * epochs
        return steps if most_steps == -1 else min(steps, most_steps)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the checkpoint.

        Raises:
            ValueError: the trainer does what this callback can't follow.
        """
        _check(trainer, pl_module)
        self.training = FrameworkTraining(
            pl_module, trainer.optimizers[0], self._plan, trainer.accumulate_grad_batches, **self._options
        )
        for name, thing in self._registered.items():
            self.training.register(name, thing)
        self.training.register("lightning", LightningState(trainer, self.training, self))
        self._follow_samples(trainer, self.training)
        trainer.accumulate_grad_batches = self.training.micro_steps
        trainer.save_checkpoint = phase(SAVE)(trainer.save_checkpoint)
        # Lightning's own handler of SIGTERM broadcasts, in the middle of whatever is being sent.
        trainer._signal_connector.register_signal_handlers = install_signal_handler

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the learning rates for the present scale."""
        self._started.begin()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Save or leave, if it is time: what follows the batch before, such as a validation, is done."""
        self._started.check_now()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Weight the loss of a pass, where passes differ in size."""
        factor = self._started.pass_factor()
        if factor != 1.0:
            loss.mul_(factor)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Note that weights are about to change."""
        self._started.before_step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the pass, and log its loss at the trainer's own interval."""
        self._started.passed()
        step, every = trainer.global_step, trainer.log_every_n_steps
        if step != self._logged_step and every and step % every == 0 and isinstance(outputs, dict):
            self._logged_step = step
            # Lightning has divided it by the passes of a step.
            log_metrics({_TRAIN_LOSS: outputs["loss"] * trainer.accumulate_grad_batches})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No batches are trained from here on."""
        self._validation.__enter__()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """They are again. What the module has logged by now is logged."""
        self._validation.__exit__(None, None, None)
        if not trainer.sanity_checking:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name != _TRAIN_LOSS}
            log_metrics(numbers_of(metrics))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save the state if another worker is lost."""
        if self.training is not None:
            self.training.save_if_worker_lost(exception)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, and say that the training is complete, with the metrics that the module has logged."""
        self._started.finish({name: float(value) for name, value in trainer.callback_metrics.items()})

    def _follow_samples(self, trainer: Trainer, training: FrameworkTraining) -> None:
        for number, config in enumerate(trainer.lr_scheduler_configs):
            if config.interval == "step" and is_schedule(config.scheduler) and _counts_samples(trainer):
                config.scheduler = training.follow(f"lightning scheduler {number}", config.scheduler)

    @property
    def _started(self) -> FrameworkTraining:
        if self.training is None:
            raise RuntimeError("MalleTrainCallback: elastic.loader can be used in Trainer.fit only")
        return self.training


class LightningState:
    """What a `Trainer` has besides model and optimizer: progress, schedulers, its other callbacks, the loss scaler."""

    def __init__(self, trainer: Trainer, training: FrameworkTraining, callback: Callback) -> None:
        """Follow a trainer between `on_fit_start` and `on_fit_end`.

        Args:
            trainer: The trainer.
            training: Its training.
            callback: The callback whose state is not saved.
        """
        self._trainer = trainer
        self._training = training
        self._callbacks = {one.state_key: one for one in trainer.callbacks if one is not callback}

    def state_dict(self) -> dict[str, Any]:
        """The state after the last complete step."""
        return {
            "steps": self._trainer.global_step,
            "loops": self._loops(),
            "schedulers": [config.scheduler.state_dict() for config in self._trainer.lr_scheduler_configs],
            "callbacks": {key: state for key, one in self._callbacks.items() if (state := one.state_dict())},
            "precision": self._trainer.precision_plugin.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        loop = self._trainer.fit_loop
        loop.load_state_dict(state["loops"])
        # The loader knows where to go on: Lightning must not skip any batch.
        loop.restarting = False
        for config, saved in zip(self._trainer.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)
        for key, saved in state["callbacks"].items():
            if key in self._callbacks:
                self._callbacks[key].load_state_dict(saved)
        if state["precision"]:
            self._trainer.precision_plugin.load_state_dict(state["precision"])

    def _loops(self) -> dict[str, Any]:
        """Lightning's counters, as they are between two steps: it counts some of a batch's after its last hook."""
        state: dict[str, Any] = copy.deepcopy(self._trainer.fit_loop.state_dict())
        epochs = self._training.samples // self._training.order.size
        for part in ("total", "current"):
            _set_all(state["epoch_progress"][part], epochs)
            batches = state["epoch_loop.batch_progress"][part]
            _set_all(batches, batches["processed"])
        state["epoch_loop.state_dict"]["_batches_that_stepped"] = self._trainer.global_step
        return state


def _counts_samples(trainer: Trainer) -> bool:
    """Whether a training is as long as a number of samples, and not of steps of any size."""
    return trainer.max_steps == -1 and trainer.max_epochs not in (None, -1) and trainer.limit_train_batches == 1.0


def _tell_steps(trainer: Trainer, steps: int) -> None:
    """Have a trainer estimate its number of steps so.

    By itself it would ask the loader, which has no length: where an epoch ends depends on the scale.
    """
    kind = type(trainer)
    trainer.__class__ = type(kind.__name__, (kind,), {"estimated_stepping_batches": steps})


def _set_all(progress: dict[str, int], value: int) -> None:
    for name in progress:
        progress[name] = value


def _check(trainer: Trainer, module: LightningModule) -> None:
    if type(trainer.strategy).__module__.endswith(_DIVIDING):
        kind = type(trainer.strategy).__name__
        raise ValueError(f"strategy: expected whole parameters in each worker, as with ddp, got {kind}: {NO_FSDP}")
    if len(trainer.optimizers) != 1 or not module.automatic_optimization:
        raise ValueError(
            f"configure_optimizers: expected one optimizer and automatic optimization, got {len(trainer.optimizers)}"
            f" and automatic_optimization={module.automatic_optimization}"
        )
    if trainer.ckpt_path is not None:
        raise ValueError(f"ckpt_path: expected None, since the job's own checkpoint is loaded, got {trainer.ckpt_path}")
