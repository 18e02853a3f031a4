"""Elastic trainings with the `Trainer` of Hugging Face Transformers: a callback.

```python
trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=test)
trainer.add_callback(MalleTrainCallback(trainer, reference_batch=64))
trainer.train()
```

How long the training is, its warmup and its schedule are functions of the sample counter: wherever the arguments count
steps, those of `reference_batch` samples are meant.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

from accelerate.data_loader import BatchSamplerShard
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from malletrain.client import log_metrics, phase
from malletrain.client.extra_state import Stateful
from malletrain.client.framework_training import (
    DIVIDING_KINDS,
    NO_FSDP,
    FrameworkTraining,
    LoaderPlan,
    TrainingOptions,
)
from malletrain.client.metric_log import numbers_of
from malletrain.client.phases import EVALUATE, SAVE
from malletrain.client.sampling import EpochBatches
from malletrain.client.schedules import is_schedule

_KEPT = (
    *("global_step", "log_history", "best_metric", "best_global_step", "best_model_checkpoint"),
    *("total_flos", "num_input_tokens_seen"),
)
"""What of a `TrainerState` goes on in the next workers. The rest depends on their number."""


class MalleTrainCallback(TrainerCallback):  # type: ignore[misc]  # Transformers is not installed where types are checked.
    """Makes a `Trainer` elastic: loads, counts, reports, saves and leaves.

    Attributes:
        training: The training, from `on_train_begin` on.
    """

    training: FrameworkTraining | None = None

    def __init__(self, trainer: Trainer, **options: Unpack[TrainingOptions]) -> None:
        """Take a trainer, which has not begun to train.

        Args:
            trainer: The trainer, with a map-style data set. Give it this callback.
            options: As for `malletrain.client.training.Training`: `reference_batch`, `learning_rate_rule`,
                `warmup_samples`, `hold_batch`, `seed`, when to save, and what is kept.

        Raises:
            ValueError: the trainer does what this callback can't follow.
        """
        _check(trainer)
        self._trainer = trainer
        self._options = options
        self._registered: dict[str, Stateful] = {}
        self._follows_samples = False
        self._train, trainer.train = trainer.train, self._train_elastically
        self._create_scheduler, trainer.create_scheduler = trainer.create_scheduler, self._create_scheduler_of_samples
        self._compute_loss, trainer.compute_loss = trainer.compute_loss, self._compute_weighted_loss
        for name, what in (("evaluate", EVALUATE), ("predict", EVALUATE), ("_save_checkpoint", SAVE)):
            setattr(trainer, name, phase(what)(getattr(trainer, name)))
        self._plan = LoaderPlan(*_undivided_batches(trainer.get_train_dataloader()))
        trainer.get_train_dataloader = self._elastic_loader

    def register(self, name: str, thing: Stateful) -> None:
        """Make another object's state part of the training; see `Training.register`. Call it before `train`."""
        self._registered[name] = thing

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Load the checkpoint."""
        optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
        training = FrameworkTraining(self._trainer.model, optimizer, self._plan, self._own_micro_steps, **self._options)
        self.training = training
        for name, thing in self._registered.items():
            training.register(name, thing)
        own = self._trainer.lr_scheduler
        training.register("transformers", TransformersState(self._trainer, self._follows_samples))
        if not self._follows_samples and is_schedule(own):
            self._trainer.lr_scheduler = training.follow("transformers scheduler", own, self._schedule_batch)
        training.begin()
        left = max(0, self._total_samples - training.samples)
        state.max_steps = state.global_step + math.ceil(left / training.global_batch)
        state.num_train_epochs = math.ceil(self._total_samples / training.order.size)
        # The means that are logged are those of the steps since now.
        self._trainer._globalstep_last_logged = self._trainer._initial_global_step = state.global_step
        self._set_progress(state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Save or leave, if it is time: what follows the step before, such as an evaluation, is done."""
        self._started.check_now()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Count a pass that is not the last one of its step."""
        self._started.passed()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Count the last pass of a step, and end the epoch at its last sample."""
        before = self._started.samples
        self._started.passed()
        self._set_progress(state)
        size = self._started.order.size
        if before // size != self._started.samples // size:
            control.should_epoch_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Log the same numbers by `log_metrics`, at the samples done: steps differ in size."""
        log_metrics(numbers_of(logs or {}))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Save, and say that the training is complete, with the metrics of the last evaluation."""
        evaluations = [logged for logged in state.log_history if any(name.startswith("eval_") for name in logged)]
        self._started.finish(evaluations[-1] if evaluations else None)

    @property
    def _started(self) -> FrameworkTraining:
        if self.training is None:
            raise RuntimeError("MalleTrainCallback: expected trainer.add_callback(callback) before trainer.train()")
        return self.training

    def _train_elastically(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """In place of `Trainer.train`: as long as wanted at this scale, and the state is saved if a worker is lost."""
        if resume_from_checkpoint:
            raise ValueError(
                "resume_from_checkpoint: expected none, since the job's own checkpoint is loaded,"
                f" got {resume_from_checkpoint!r}"
            )
        arguments = self._trainer.args
        own_steps, self._own_micro_steps = arguments.max_steps, arguments.gradient_accumulation_steps
        batch = self._options.get("reference_batch")
        self._schedule_batch = batch or self._plan.batch * self._own_micro_steps
        epochs = math.ceil(self._plan.size * arguments.num_train_epochs)
        self._total_samples = own_steps * self._schedule_batch if own_steps > 0 else epochs
        held = batch if self._options.get("hold_batch") else None
        sampler = self._plan.sampler(0, held, self._own_micro_steps)
        sampler.set_scale(arguments.process_index, arguments.world_size)
        arguments.gradient_accumulation_steps = sampler.partition.micro_steps
        arguments.max_steps = math.ceil(self._total_samples / sampler.partition.global_batch)
        scheduler = self._trainer.lr_scheduler
        try:
            return self._train(**options)
        except RuntimeError as error:
            if self.training is not None:
                self.training.save_if_worker_lost(error)
            raise
        finally:
            if scheduler is not None:
                self._trainer.lr_scheduler = scheduler
            arguments.max_steps, arguments.gradient_accumulation_steps = own_steps, self._own_micro_steps

    def _elastic_loader(self) -> DataLoader[Any]:
        """In place of `Trainer.get_train_dataloader`: from the present sample to the end of the epoch.

        It has no length: the trainer then goes on until the training is as long as wanted.
        """
        return self._plan.loader(EpochBatches(lambda: self._started, self._total_samples))

    def _create_scheduler_of_samples(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """In place of `Trainer.create_scheduler`: it is told the number of steps of `reference_batch` samples."""
        own = self._trainer.lr_scheduler is not None
        steps = math.ceil(self._total_samples / self._schedule_batch)
        scheduler = self._create_scheduler(num_training_steps=steps, optimizer=optimizer)
        self._follows_samples = not own and isinstance(scheduler, LambdaLR)
        return scheduler

    def _compute_weighted_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """In place of `Trainer.compute_loss`: with the weight of a pass, where passes differ in size."""
        loss = self._compute_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch)
        if return_outputs or not self._options.get("hold_batch") or _is_sum(self._trainer, num_items_in_batch):
            return loss
        return loss * self._started.pass_factor()

    def _set_progress(self, state: TrainerState) -> None:
        """Set epoch and rates as functions of the sample counter; the trainer would count steps of this scale."""
        state.epoch = self._started.samples / self._started.order.size
        scheduler = self._trainer.lr_scheduler
        if not self._follows_samples:
            return
        scheduler.last_epoch = self._started.samples / self._schedule_batch
        rates = [
            base * factor(scheduler.last_epoch)
            for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        scheduler._last_lr = rates
        for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class TransformersState:
    """What a `Trainer` has besides model and optimizer: progress, a scheduler that counts steps, callbacks, scaler."""

    def __init__(self, trainer: Trainer, follows_samples: bool) -> None:
        """Follow a trainer between `on_train_begin` and `on_train_end`.

        Args:
            trainer: The trainer.
            follows_samples: Whether its scheduler's place is given by the sample counter.
        """
        self._trainer = trainer
        self._scheduler = None if follows_samples else trainer.lr_scheduler
        self._callbacks = {
            type(one).__name__: one for one in trainer.callback_handler.callbacks if isinstance(one, ExportableState)
        }

    def state_dict(self) -> dict[str, Any]:
        """The state after the last complete step."""
        state, scaler = self._trainer.state, self._trainer.accelerator.scaler
        return {
            "progress": {name: getattr(state, name) for name in _KEPT},
            "callbacks": {name: one.state()["attributes"] for name, one in self._callbacks.items()},
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        for name, value in state["progress"].items():
            setattr(self._trainer.state, name, value)
        for name, attributes in state["callbacks"].items():
            for key, value in attributes.items():
                if name in self._callbacks:
                    setattr(self._callbacks[name], key, value)
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._trainer.accelerator.scaler is not None and state["scaler"]:
            self._trainer.accelerator.scaler.load_state_dict(state["scaler"])


def _check(trainer: Trainer) -> None:
    arguments, kind = trainer.args, trainer.accelerator.distributed_type.value
    if kind in DIVIDING_KINDS:
        raise ValueError(f"fsdp: expected whole parameters in each worker, got {kind}: {NO_FSDP}")
    if arguments.auto_find_batch_size:
        raise ValueError("auto_find_batch_size: expected False, since all workers need the same batch, got True")
    if arguments.accelerator_config.split_batches or arguments.accelerator_config.dispatch_batches:
        raise ValueError("accelerator_config: expected neither split_batches nor dispatch_batches, got one of them")


def _undivided_batches(loader: DataLoader[Any]) -> tuple[DataLoader[Any], Any]:
    """A loader that Accelerate has prepared, and its batches before they were divided among the workers."""
    batches = loader.batch_sampler
    return loader, batches.batch_sampler if isinstance(batches, BatchSamplerShard) else batches


def _is_sum(trainer: Trainer, items: Any) -> bool:
    """Whether losses are sums over the samples of the global batch, so that passes may differ in size."""
    told = getattr(trainer, "loss_is_scaled_for_ga", None)
    if told is not None:
        return bool(told)
    return (trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None
