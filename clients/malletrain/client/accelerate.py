"""Elastic trainings with Hugging Face Accelerate: an `Accelerator`.

```python
accelerator = ElasticAccelerator(reference_batch=64)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in accelerator.epochs(10):
    for inputs, labels in loader:
        accelerator.backward(loss_of(model, inputs, labels))
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
```
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch.utils.data import DataLoader

from malletrain.client import log_metrics, phase
from malletrain.client.extra_state import Stateful
from malletrain.client.framework_training import NO_DEEPSPEED, FrameworkTraining, LoaderPlan, TrainingOptions
from malletrain.client.metric_log import numbers_of
from malletrain.client.phases import EVALUATE, SAVE
from malletrain.client.sampling import EpochBatches


class ElasticAccelerator(Accelerator):  # type: ignore[misc]  # Accelerate is not installed where types are checked.
    """An `Accelerator` that loads, counts, reports, saves and leaves.

    Attributes:
        training: The training, once model, optimizer and loader are prepared.
    """

    training: FrameworkTraining | None = None
    gradient_accumulation_steps: int

    def __init__(self, **options: Any) -> None:
        """As `Accelerator`.

        Args:
            options: Those of `Accelerator`, and as for `malletrain.client.training.Training`: `reference_batch`,
                `learning_rate_rule`, `warmup_samples`, `hold_batch`, `seed`, and when to save.

        Raises:
            ValueError: an option divides batches in a way that has no sample counter, or the state by DeepSpeed.
        """
        # Before it makes a process group.
        if options.get("deepspeed_plugin") or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
            raise ValueError(f"deepspeed_plugin: expected none, got one: {NO_DEEPSPEED}")
        names = TrainingOptions.__annotations__.keys()
        own = {name: value for name, value in options.items() if name in names}
        super().__init__(**{name: value for name, value in options.items() if name not in names})
        if self.split_batches or self.dispatch_batches:
            raise ValueError("ElasticAccelerator: expected neither split_batches nor dispatch_batches, got one of them")
        self._elastic_options = cast(TrainingOptions, own)
        self._metrics: dict[str, float] = {}

    def prepare(self, *things: Any, device_placement: list[bool | None] | None = None) -> Any:
        """As `Accelerator.prepare`; the call that gets model, optimizer and loader loads the checkpoint, too.

        Args:
            things: What is to be prepared. The first data loader of that call is the one that is trained with.
            device_placement: As for `Accelerator.prepare`.

        Raises:
            ValueError: that call has several models or optimizers, or the loader is of another kind.
        """
        loader = next((thing for thing in things if isinstance(thing, DataLoader)), None)
        models = [place for place, thing in enumerate(things) if isinstance(thing, torch.nn.Module)]
        optimizers = [place for place, thing in enumerate(things) if isinstance(thing, torch.optim.Optimizer)]
        if self.training is not None or loader is None or not models or not optimizers:
            return super().prepare(*things, device_placement=device_placement)
        if len(models) != 1 or len(optimizers) != 1:
            raise ValueError(f"prepare: expected one model and one optimizer, got {len(models)} and {len(optimizers)}")
        plan = LoaderPlan(loader)
        elastic = ElasticLoader(self, plan)
        kept = [place for place, thing in enumerate(things) if thing is not loader]
        devices = [device_placement[place] for place in kept] if device_placement else None
        found = super().prepare(*(things[place] for place in kept), device_placement=devices)
        prepared = dict(zip(kept, found if len(kept) > 1 else (found,), strict=True))
        self._begin(prepared[models[0]], prepared[optimizers[0]], plan)
        for number, thing in enumerate(one for one in prepared.values() if isinstance(one, AcceleratedScheduler)):
            # With hold_batch a step has as many samples with any number of workers.
            thing.split_batches = bool(self._elastic_options.get("hold_batch"))
            self.started.register(f"scheduler {number}", thing)
        return tuple(prepared.get(place, elastic) for place in range(len(things)))

    @property
    def started(self) -> FrameworkTraining:
        """The training.

        Raises:
            RuntimeError: nothing is prepared yet.
        """
        if self.training is None:
            raise RuntimeError("ElasticAccelerator: expected accelerator.prepare(model, optimizer, loader) before")
        return self.training

    def epochs(self, count: int) -> Iterator[int]:
        """Numbers of the epochs from the present one on, in place of `range`.

        An epoch that the script leaves early goes on in the next iteration.

        Args:
            count: Epochs of the whole training.

        Raises:
            RuntimeError: an iteration has trained with nothing.
        """
        training = self.started
        while training.samples // training.order.size < count:
            before = training.samples
            yield before // training.order.size
            if training.samples == before:
                raise RuntimeError("epochs: expected an iteration over the prepared loader in each epoch, got none")

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """As `Accelerator.backward`.

        Raises:
            RuntimeError: the step does not have as many passes as it should.
        """
        training = self.started
        if self.sync_gradients != training.is_last_pass:
            raise RuntimeError("backward: expected each pass to be made under `with accelerator.accumulate(model)`")
        self.or_save(super().backward)(loss * training.pass_factor(), **options)

    def log(self, values: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        """As `Accelerator.log`; numbers are logged by `log_metrics`, too, and the last become metrics of the job."""
        log_metrics(numbers_of(values), arguments[0] if arguments else options.get("step"))
        self._metrics |= {name: value for name, value in values.items() if isinstance(value, int | float)}
        super().log(values, *arguments, **options)

    def register_for_checkpointing(self, *objects: Stateful) -> None:
        """As `Accelerator.register_for_checkpointing`; their states become part of the training.

        Call it after `prepare`, in the same order in all workers.
        """
        first = len(self._custom_objects)
        super().register_for_checkpointing(*objects)
        for number, thing in enumerate(objects, start=first):
            self.started.register(f"registered {number}", thing)

    def save_state(self, *arguments: Any, **options: Any) -> Any:
        """As `Accelerator.save_state`."""
        with phase(SAVE):
            return super().save_state(*arguments, **options)

    def save_model(self, *arguments: Any, **options: Any) -> Any:
        """As `Accelerator.save_model`."""
        with phase(SAVE):
            return super().save_model(*arguments, **options)

    def end_training(self) -> None:
        """As `Accelerator.end_training`. Saves, and says that the training is complete."""
        self.or_save(self.started.finish)(self._metrics)
        super().end_training()

    def gather(self, *arguments: Any) -> Any:
        """As `Accelerator.gather`."""
        return self.or_save(super().gather)(*arguments)

    def reduce(self, *arguments: Any, **options: Any) -> Any:
        """As `Accelerator.reduce`."""
        return self.or_save(super().reduce)(*arguments, **options)

    def wait_for_everyone(self) -> None:
        """As `Accelerator.wait_for_everyone`."""
        self.or_save(super().wait_for_everyone)()

    def or_save(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that saves the state if another worker is lost in this one."""

        @functools.wraps(function)
        def watched(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except RuntimeError as error:
                if self.training is not None:
                    self.training.save_if_worker_lost(error)
                raise

        return watched

    def _begin(self, model: torch.nn.Module, optimizer: AcceleratedOptimizer, plan: LoaderPlan) -> None:
        plain = self.unwrap_model(model)
        passes: int = self.gradient_accumulation_steps
        training = FrameworkTraining(plain, optimizer.optimizer, plan, passes, **self._elastic_options)
        self.gradient_accumulation_steps = training.micro_steps
        if self.scaler is not None:
            training.register("scaler", self.scaler)
        if model is not plain:
            # Its buffers are sent before a pass.
            model.forward = self.or_save(model.forward)
        self.training = training


class ElasticLoader:
    """A worker's batches. One iteration goes on from the present sample to the end of the epoch."""

    def __init__(self, accelerator: ElasticAccelerator, plan: LoaderPlan) -> None:
        """Make a loader like that of the script.

        Args:
            accelerator: Moves batches to its device, and has the training when the iteration begins.
            plan: The script's loader.
        """
        self._accelerator = accelerator
        self.dataset = plan.dataset
        self._loader = prepare_data_loader(
            plan.loader(EpochBatches(lambda: accelerator.started)),
            accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=accelerator.device_placement,
        )
        self._begun = False
        self._outside = phase(EVALUATE)

    def __len__(self) -> int:
        """Passes of this worker in a whole epoch at the present scale."""
        training = self._accelerator.started
        return math.ceil(training.order.size / training.global_batch) * training.micro_steps

    def __iter__(self) -> Iterator[Any]:
        """One batch after the other. Between two iterations, the script is taken to evaluate.

        Raises:
            SystemExit: the process has to end, and its state is on disk.
        """
        self._outside.__exit__(None, None, None)
        try:
            yield from self._batches()
        finally:
            self._outside.__enter__()

    def _batches(self) -> Iterator[Any]:
        training = self._accelerator.started
        if not self._begun:
            self._begun = True
            self._accelerator.or_save(training.begin)()
        for batch in self._loader:
            self._accelerator.or_save(training.check_before_pass)()
            try:
                yield batch
            finally:
                # The script asks for the next batch, or has left the loop.
                training.passed()
