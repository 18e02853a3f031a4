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

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DummyOptim, DummyScheduler, InitProcessGroupKwargs
from torch.utils.data import DataLoader

from malletrain.client import log_metrics, phase
from malletrain.client.extra_state import Stateful
from malletrain.client.framework_training import (
    DIVIDING_KINDS,
    NO_FSDP,
    FollowedTraining,
    FrameworkTraining,
    LoaderPlan,
    TrainingOptions,
)
from malletrain.client.metric_log import numbers_of
from malletrain.client.phases import EVALUATE, SAVE
from malletrain.client.sampling import EpochBatches

if TYPE_CHECKING:
    from malletrain.client.framework_zero import FrameworkZeroTraining


class ElasticAccelerator(Accelerator):  # type: ignore[misc]  # Accelerate is not installed where types are checked.
    """An `Accelerator` that loads, counts, reports, saves and leaves.

    Attributes:
        training: The training, once model, optimizer and loader are prepared.
    """

    training: FollowedTraining | None = None
    gradient_accumulation_steps: int
    _zero: FrameworkZeroTraining | None = None

    def __init__(self, **options: Any) -> None:
        """As `Accelerator`.

        Args:
            options: Those of `Accelerator`, and as for `malletrain.client.training.Training`: `reference_batch`,
                `learning_rate_rule`, `warmup_samples`, `hold_batch`, `seed`, when to save, and what is kept.

        Raises:
            ValueError: an option divides batches in a way that has no sample counter, or does not fit DeepSpeed.
        """
        # Before Accelerate makes a process group.
        if _chooses_deepspeed(options):
            options = _with_group(options)
        names = TrainingOptions.__annotations__.keys()
        own = {name: value for name, value in options.items() if name in names}
        super().__init__(**{name: value for name, value in options.items() if name not in names})
        if self.split_batches or self.dispatch_batches:
            raise ValueError("ElasticAccelerator: expected neither split_batches nor dispatch_batches, got one of them")
        if (kind := self.distributed_type.value) in DIVIDING_KINDS:
            raise ValueError(f"ElasticAccelerator: expected whole parameters in each worker, got {kind}: {NO_FSDP}")
        if self.deepspeed_plugin is not None:
            _zero().check_config(self.deepspeed_plugin.deepspeed_config)
        self._elastic_options = cast(TrainingOptions, own)
        self._metrics: dict[str, float] = {}

    def prepare(self, *things: Any, device_placement: list[bool | None] | None = None) -> Any:
        """As `Accelerator.prepare`; the call that gets model, optimizer and loader loads the checkpoint, too.

        Args:
            things: What is to be prepared. The first data loader of that call is the one that is trained with.
            device_placement: As for `Accelerator.prepare`.

        Raises:
            ValueError: that call has several models or optimizers, or the loader is of another kind, or something is
                DeepSpeed's own.
        """
        for thing in things if self.deepspeed_plugin is not None else ():
            _check_not_of_deepspeed(thing)
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
        passes = self._passes_of_deepspeed(plan) if self.deepspeed_plugin is not None else None
        results = super().prepare(*(things[place] for place in kept), device_placement=devices)
        prepared = dict(zip(kept, results if len(kept) > 1 else (results,), strict=True))
        if passes is None:
            self._begin(prepared[models[0]], prepared[optimizers[0]], plan)
        else:
            self._begin_zero(prepared[models[0]], plan, passes)
        for number, thing in enumerate(one for one in prepared.values() if isinstance(one, AcceleratedScheduler)):
            # With hold_batch a step has as many samples with any number of workers.
            thing.split_batches = bool(self._elastic_options.get("hold_batch"))
            self.started.register(f"scheduler {number}", thing)
        return tuple(prepared.get(place, elastic) for place in range(len(things)))

    @property
    def started(self) -> FollowedTraining:
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
        if self._zero is not None:
            self.or_save(self._zero.backward)(loss, **options)
        else:
            self.or_save(super().backward)(loss * training.pass_factor(), **options)

    @contextlib.contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        """As `Accelerator.no_sync`. With DeepSpeed, `backward` says to the engine which pass is the last of a step."""
        # An engine's own refuses ZeRO 2 and 3, and Accelerate 1.3 enters it with any stage.
        with super().no_sync(model) if self._zero is None else contextlib.nullcontext():
            yield

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

    def _passes_of_deepspeed(self, plan: LoaderPlan) -> int:
        """Set the sizes in DeepSpeed's configuration; the passes of a step, of which the engine does not know."""
        config = self.deepspeed_plugin.deepspeed_config
        passes = config.get("gradient_accumulation_steps", "auto")
        passes = self.gradient_accumulation_steps if passes in ("auto", 1) else int(passes)
        _zero().fill_config(config, plan.batch, self.num_processes)
        self.gradient_accumulation_steps = 1
        return passes

    def _begin_zero(self, engine: torch.nn.Module, plan: LoaderPlan, passes: int) -> None:
        self._zero = self.training = _zero().FrameworkZeroTraining(engine, plan, passes, **self._elastic_options)
        self.gradient_accumulation_steps = self.training.micro_steps
        # With ZeRO 3 weights are gathered in a pass.
        engine.forward = self.or_save(engine.forward)


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


def _chooses_deepspeed(options: Mapping[str, Any]) -> bool:
    named = options.get("deepspeed_plugin") or options.get("deepspeed_plugins")
    return bool(named) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"


def _with_group(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make the process group that DeepSpeed takes; the options of an `Accelerator` that takes it, too.

    Raises:
        ValueError: an option does not fit.
    """
    if options.get("cpu"):
        raise ValueError("cpu: expected False with DeepSpeed (DS_ACCELERATOR=cpu chooses CPUs), got True")
    if options.get("deepspeed_plugins") or isinstance(options.get("deepspeed_plugin"), dict):
        raise ValueError("deepspeed_plugin: expected one plugin, got several")
    _zero().begin_group()
    handlers = list(options.get("kwargs_handlers") or ())
    if not torch.cuda.is_available() and not any(isinstance(one, InitProcessGroupKwargs) for one in handlers):
        # Without a GPU Accelerate 1.15 would take each worker for the only one.
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    return {**options, "kwargs_handlers": handlers}


def _zero() -> Any:
    """What imports DeepSpeed, which others do without."""
    from malletrain.client import framework_zero  # only where a script makes use of it

    return framework_zero


def _check_not_of_deepspeed(thing: object) -> None:
    """Refuse an optimizer or a scheduler that DeepSpeed would make or step.

    Raises:
        ValueError: it is one.
    """
    kind = type(thing)
    if isinstance(thing, DummyOptim):
        raise ValueError(f"optimizer: expected one of torch, got {kind.__name__}")
    if isinstance(thing, DummyScheduler) or kind.__module__.startswith("deepspeed.runtime.lr_schedules"):
        raise ValueError(f"scheduler: expected one of torch, which follows the samples, got {kind.__name__}")
