"""Elastic trainings whose loop belongs to a framework, such as Lightning.

The framework wraps the model, makes the passes and the steps. What is here follows it: it loads the checkpoint, says
which samples come next, counts, reports, scales the rates, saves, and ends the process when it has to leave. All
workers are restarted at every rescale, under torchrun's backend of MalleTrain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from malletrain.client import refresh
from malletrain.client.distributed import DistributedTraining, PlainTrainingState
from malletrain.client.lr_scaling import ScalingRule, ScalingRuleChoice, SteppedRates
from malletrain.client.replica import Stopped
from malletrain.client.sampling import EpochBatches, EpochOrder, WorkerSampler, WorkerShare
from malletrain.client.schedules import SampleSchedule
from malletrain.client.training import leave, permutation

NO_DEEPSPEED = (
    "what it divides is saved, for any number of workers, by malletrain.client.deepspeed, or ElasticAccelerator, alone"
)
"""What those are told whose framework makes use of DeepSpeed."""
NO_FSDP = "what it divides is saved, for any number of workers, by malletrain.client.fsdp alone, in a loop of your own"
"""What those are told whose framework makes use of FSDP."""
DIVIDING_KINDS = ("FSDP", "MEGATRON_LM", "TP")
"""Kinds of distributed trainings of Accelerate, by name, in which no worker has all of the state."""
_DIVIDING = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed._tensor")
"""Where the classes of divided modules and parameters come from; none of it is imported where nothing is divided."""


class TrainingOptions(TypedDict, total=False):
    """What may be chosen in every framework; see `malletrain.client.training.Training` for meaning and defaults."""

    reference_batch: int | None
    seed: int
    commit_seconds: float
    checkpoint_seconds: float
    checkpoint_folder: Path | None
    checkpoints_kept: int
    max_checkpoint_bytes: int | None
    learning_rate_rule: ScalingRuleChoice
    warmup_samples: int
    hold_batch: bool


class FollowedTraining(DistributedTraining):
    """What follows the loop of a framework, however the training keeps its state.

    Call `begin` before the first batch, `before_step` before an optimizer's step with a closure, `passed` after each
    pass (or `stepped` after each step), `check_now` before the first pass of a step, and `finish` at the end.
    """

    _steps_schedules = False

    def _follow_plan(self, plan: LoaderPlan, micro_steps: int, *, hold_batch: bool) -> None:
        """Take what the script's loader says; to be called before the other constructors.

        Args:
            plan: The script's loader.
            micro_steps: Passes of a worker in one step, as the framework has been told.
            hold_batch: Whether the global batch is kept constant.

        Raises:
            ValueError: the script accumulates, and the batch is held.
        """
        if hold_batch and micro_steps != 1:
            raise ValueError(f"hold_batch: expected no accumulation of the script's own, got {micro_steps} passes")
        self._plan = plan
        self._own_micro_steps = micro_steps
        self._passes_made = 0

    @property
    def order(self) -> EpochOrder:
        """The order of samples."""
        return self._sampler.order

    @property
    def share(self) -> WorkerShare:
        """This worker's share of each global batch."""
        return self._sampler.share

    def begin(self) -> None:
        """Set the rates for the present scale, and restore the random number generators."""
        self._begin()

    @property
    def is_last_pass(self) -> bool:
        """Whether the present pass is the last one of a step."""
        return (self._passes_made + 1) % self.micro_steps == 0

    def pass_factor(self) -> float:
        """Factor for the loss of the present pass, for a framework that averages the passes of a step.

        It is 1.0 unless `hold_batch` has led to passes of different size.
        """
        partition = self._sampler.partition
        sizes = partition.micro_batches(self.rank)
        return partition.weight(sizes[self._passes_made % len(sizes)]) * partition.micro_steps

    def follow(self, name: str, scheduler: Any, batch: int | None = None) -> FollowingScheduler:
        """A scheduler for the framework to step once per global batch, in place of one whose state has been loaded.

        Args:
            name: A name that is unique in the training.
            scheduler: A scheduler of torch.
            batch: Samples of one of its steps; None: `schedule_batch`.
        """
        schedule = self._schedule_of(name, scheduler, batch or self.schedule_batch)
        self._schedules.append(schedule)
        return FollowingScheduler(schedule, lambda: self.global_batch)

    def before_step(self) -> None:
        """From now on to `stepped` the state is neither that before the step nor that after it."""
        self._consistent = False

    def passed(self) -> None:
        """Count a pass, and with the last one of a step the global batch."""
        self._passes_made += 1
        if self._passes_made % self.micro_steps == 0:
            self.stepped()

    def stepped(self) -> None:
        """Count and report a global batch whose gradients have been applied."""
        self._count()
        self._check_interval.count()

    def check_now(self) -> None:
        """Commit, save or leave if it is time. All workers call it at the same batch."""
        if self._check_interval.due:
            try:
                self._check()
            except Stopped as stopped:
                leave(stopped)

    def check_before_pass(self) -> None:
        """As `check_now`, if the next pass is the first one of a step."""
        if self._passes_made % self.micro_steps == 0:
            self.check_now()

    def save_if_worker_lost(self, error: BaseException) -> None:
        """After an error: if another worker is lost, save the state and end the process. Otherwise return."""
        if isinstance(error, RuntimeError):
            try:
                self._save_after_loss(error)
            except Stopped as stopped:
                leave(stopped)

    def _make_sampler(self, size: int, batch_per_worker: int, constant_batch: int | None, seed: int) -> WorkerSampler:
        del size, batch_per_worker
        return self._plan.sampler(seed, constant_batch, self._own_micro_steps)

    def _set_scale(self) -> None:
        # It is set since the checkpoint has been loaded, and the framework may have begun to iterate.
        refresh()

    def _set_passes(self, passes: int) -> None:
        """Do nothing: the framework exchanges gradients in the last pass."""


class FrameworkTraining(FollowedTraining):
    """A training that a framework drives, and whose workers all have the whole state."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: LoaderPlan,
        micro_steps: int = 1,
        **options: Unpack[TrainingOptions],
    ) -> None:
        """Load the newest checkpoint, if there is one. The process group is initialised, if there are others.

        Args:
            model: The model as the script has made it, without the framework's wrapper.
            optimizer: The optimizer, without the framework's wrapper.
            micro_steps: Passes of a worker in one step, as the framework has been told.
            options: As for `Training`.

        Raises:
            ValueError: an option is out of its range, the optimizer is DeepSpeed's, or parameters are divided.
        """
        if any(kind.__module__.startswith("deepspeed.runtime") for kind in type(optimizer).__mro__):
            raise ValueError(f"optimizer: expected one of torch, got {type(optimizer).__name__}: {NO_DEEPSPEED}")
        _check_whole(model, optimizer)
        self._follow_plan(plan, micro_steps, hold_batch=bool(options.get("hold_batch")))
        super().__init__(model, optimizer, dataset_size=plan.size, batch_per_worker=plan.batch, **options)

    def _make_rates(
        self, optimizer: torch.optim.Optimizer, reference_batch: int | None, rule: ScalingRule, warmup_samples: int
    ) -> SteppedRates:
        self._stepped_rates = SteppedRates(optimizer, reference_batch, rule, warmup_samples)
        return self._stepped_rates

    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> PlainTrainingState:
        self.model = model
        optimizer.register_step_pre_hook(self._before_plain_step)
        return self._load(model, optimizer)[0]

    def _before_plain_step(self, _optimizer: object, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        # With a closure the passes are made inside of the step. Some frameworks pass None for one.
        if (arguments[1] if len(arguments) > 1 else options.get("closure")) is None:
            self.before_step()

    def _content(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        # A step that has failed has left its rates.
        self._stepped_rates.unscale()
        return super()._content(states)


def _check_whole(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what workers have parts of only: rank 0 saves what it has for all.

    Raises:
        ValueError: a module or a parameter is divided by FSDP, or is a divided tensor.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for thing in (*model.modules(), *model.parameters(), *parameters):
        for kind in type(thing).__mro__:
            if kind.__module__.startswith(_DIVIDING):
                raise ValueError(f"model: expected whole parameters in each worker, got {kind.__name__}: {NO_FSDP}")


class FollowingScheduler:
    """Stands for a scheduler: a step of the framework is a global batch of samples. All else is the scheduler's own."""

    def __init__(self, schedule: SampleSchedule, global_batch: Callable[[], int]) -> None:
        """Stand for a scheduler.

        Args:
            global_batch: Returns the samples of a step of the framework.
        """
        self._schedule = schedule
        self._global_batch = global_batch

    def step(self, *arguments: Any, **options: Any) -> None:
        """Count a global batch. Who says which step it is, is the scheduler's own master."""
        if arguments or options:
            self._schedule.scheduler.step(*arguments, **options)
        else:
            self._schedule.step(self._global_batch())

    def __getattr__(self, name: str) -> Any:
        """What else the scheduler has."""
        return getattr(self._schedule.scheduler, name)


class LoaderPlan:
    """What a script's data loader says: data set, batch, order.

    Attributes:
        dataset: The data set.
        size: Samples in it.
        batch: Samples per worker and pass.
    """

    def __init__(self, loader: DataLoader[Any], batches: Any = None) -> None:
        """Read a loader.

        Args:
            loader: A loader of a map-style data set, with `batch_size`, and `shuffle` or not.
            batches: Its batches before a framework divided them among the workers; None: those of the loader.

        Raises:
            ValueError: its samples are not determined by a sample counter: an iterable data set, a sampler of the
                script's own, batches of the script's own.
        """
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError("loader: expected a map-style data set, got an IterableDataset, which has no positions")
        batches = batches or loader.batch_sampler
        sampler = getattr(batches, "sampler", None)
        if type(batches) is not BatchSampler or not isinstance(sampler, RandomSampler | SequentialSampler):
            raise ValueError(
                "loader: expected DataLoader(dataset, batch_size=..., shuffle=...),"
                f" got one with {type(sampler).__name__} and {type(batches).__name__}"
            )
        self._loader = loader
        self.dataset = loader.dataset
        self.size = len(loader.dataset)
        self.batch = batches.batch_size
        self._shuffled = isinstance(sampler, RandomSampler)

    def sampler(self, seed: int, constant_batch: int | None, micro_steps: int) -> WorkerSampler:
        """Selects samples: in a new order for each epoch if the loader shuffles. See `WorkerSampler`."""
        order = EpochOrder(self.size, seed, permutation if self._shuffled else _in_order)
        return WorkerSampler(order, self.batch, constant_batch, micro_steps)

    def loader(self, batches: EpochBatches) -> DataLoader[Any]:
        """The same loader with other batches."""
        like = self._loader
        return DataLoader(
            self.dataset,
            batch_sampler=batches,
            num_workers=like.num_workers,
            collate_fn=like.collate_fn,
            pin_memory=like.pin_memory,
            timeout=like.timeout,
            worker_init_fn=like.worker_init_fn,
            multiprocessing_context=like.multiprocessing_context,
            # Of its own: what a new iterator draws must not change the random numbers of the training.
            generator=torch.Generator(),
            prefetch_factor=like.prefetch_factor,
            persistent_workers=like.persistent_workers,
        )


def _in_order(size: int, seed: int) -> range:
    del seed
    return range(size)
