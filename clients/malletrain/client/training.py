"""The interface of an elastic training for scripts, independent of the communication library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, cast

import torch
from torch.optim.lr_scheduler import LRScheduler

from malletrain.client import current_job, done, install_signal_handler, report, seconds_to_leave
from malletrain.client.checkpoint_manager import CheckpointManager
from malletrain.client.checkpoints import CheckpointRetention
from malletrain.client.extra_state import Stateful
from malletrain.client.gradient_noise import NoiseMeter, NoiseReports, measured_every
from malletrain.client.job_context import read_batch_per_worker
from malletrain.client.lr_scaling import LearningRates, ScalingRule, ScalingRuleChoice, scaling_rule
from malletrain.client.replica import Replica, Stopped
from malletrain.client.sampling import ElasticBatches, EpochOrder, Permute, WorkerSampler
from malletrain.client.saving_marker import SavingMarker
from malletrain.client.schedules import SampleSchedule, is_schedule, move_to
from malletrain.client.snapshots import random_states, snapshot_of
from malletrain.client.warn_once import WarnOnce

_BY_SAMPLES = " by samples"
"""Ends the names of states that lie beside those of schedulers."""


class Training(Replica):
    """One elastic training: state, sample counter, commits, checkpoints, learning rate.

    About every 0.1 s, rank 0 tells the others in one small broadcast whether to commit, to save, or to stop: when a
    rescale is coming, when MalleTrain requests it, and every `commit_seconds`. Nothing is copied in between.
    """

    _steps_schedules = True
    """Whether the `step` of registered schedulers comes to `step`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        dataset_size: int,
        batch_per_worker: int,
        reference_batch: int | None = None,
        seed: int = 0,
        commit_seconds: float = 5.0,
        checkpoint_seconds: float = 30.0,
        checkpoint_folder: Path | None = None,
        checkpoints_kept: int = 2,
        max_checkpoint_bytes: int | None = None,
        learning_rate_rule: ScalingRuleChoice = "auto",
        warmup_samples: int = 0,
        hold_batch: bool = False,
        grad_scaler: torch.amp.GradScaler | None = None,
        permute: Permute | None = None,
        measure_noise: bool = False,
    ) -> None:
        """Call it after `init`. Loads the newest checkpoint if there is one.

        Args:
            model: The model, on its device.
            optimizer: A plain optimizer for its parameters, with the learning rates for `reference_batch`.
            dataset_size: Samples in the training set.
            batch_per_worker: Samples per worker and pass. The variable MALLETRAIN_BATCH_PER_WORKER takes precedence:
                members of a fleet get it from the fleet's file.
            reference_batch: Global batch in samples that the learning rates fit; None: they are never changed.
            seed: Seed of the order of samples.
            commit_seconds: Longest time in seconds between two commits.
            checkpoint_seconds: Longest time in seconds between two checkpoints on disk. Commits are saved as well while
                that takes less than 5 % of the time, so that very little of a small model's training can be lost.
            checkpoint_folder: Folder of the checkpoints. By default the job's folder; outside MalleTrain, none.
            checkpoints_kept: Most checkpoints that are kept, at least 1.
            max_checkpoint_bytes: Most bytes of all that are kept together; the newest one always is. None: no limit.
            learning_rate_rule: How the rates follow the global batch: "linear", or "sqrt", with its square root; "auto"
                is "sqrt" for adaptive optimizers such as Adam, "linear" for others.
            warmup_samples: Samples over which the rates rise when the global batch has grown (and at the start, if it
                is larger than `reference_batch`). They fall at once.
            hold_batch: Keep the global batch at `reference_batch` by gradient accumulation, with at most
                `batch_per_worker` samples per pass, instead of scaling the rates. Train with `micro_batches` then.
            grad_scaler: Applies the gradients in `step`, unless one is not finite, and is updated there. It is
                registered as "grad_scaler". Scale the losses with it.
            permute: Makes the order of each epoch from (`dataset_size`, its seed), the same for all workers, e.g.
                `ChunkOrder`; None: a random one.
            measure_noise: Measure the gradient noise scale in one step of ten, and log it with `log_metrics`. A job
                whose value is its goodput does so by itself, by the variable MALLETRAIN_GRADIENT_NOISE.

        Raises:
            ValueError: an argument is out of its range, or MALLETRAIN_GRADIENT_NOISE is.
        """
        if hold_batch and reference_batch is None:
            raise ValueError("hold_batch: expected a reference_batch to hold, got none")
        batch_per_worker = read_batch_per_worker(os.environ) or batch_per_worker
        if batch_per_worker < 1:
            raise ValueError(f"batch_per_worker: expected at least 1 sample, got {batch_per_worker}")
        if warmup_samples < 0:
            raise ValueError(f"warmup_samples: expected at least 0, got {warmup_samples}")
        job = current_job()
        self._as_release_0_1 = job is not None and job.beside_release_0_1
        if self._as_release_0_1 and learning_rate_rule == "auto":
            learning_rate_rule = "linear"
        self._permute = permute or permutation
        super().__init__(
            model,
            self._make_sampler(dataset_size, batch_per_worker, reference_batch if hold_batch else None, seed),
            self._make_rates(optimizer, reference_batch, scaling_rule(optimizer, learning_rate_rule), warmup_samples),
            CheckpointManager(
                checkpoint_folder or (job.checkpoint_directory if job else None),
                checkpoint_seconds,
                retention=CheckpointRetention(checkpoints_kept, max_checkpoint_bytes),
                seconds_left=seconds_to_leave,
                rescales_by_disk=self._rescales_by_disk,
            ),
            SavingMarker(job.directory if job else None),
            commit_seconds,
        )
        self._grad_scaler = grad_scaler
        self._schedules: list[SampleSchedule] = []
        self._warnings = WarnOnce()
        self._reference_batch = reference_batch
        self._state = self._join(model, optimizer)
        # A scheduler that is made later sets the rates to its own first ones.
        self._rates_on_disk = [group["lr"] for group in self.optimizer.param_groups] if self.samples else None
        if grad_scaler is not None:
            self.register("grad_scaler", grad_scaler)
        every = measured_every(os.environ, measure_noise)
        self._noise = self._noise_reports(every, hold_batch) if every else None
        install_signal_handler()

    def _rescales_by_disk(self, size: int) -> bool:
        """Whether this worker's state, of a size in bytes, is saved and read again at a change of scale."""
        del size
        return False

    def _make_sampler(self, size: int, batch_per_worker: int, constant_batch: int | None, seed: int) -> WorkerSampler:
        return WorkerSampler(EpochOrder(size, seed, self._permute), batch_per_worker, constant_batch)

    def _noise_reports(self, every: int, hold_batch: bool) -> NoiseReports | None:
        noise = self._make_noise(every)
        if noise is None:
            message = "the gradient noise scale is not measured in this kind of training: its goodput is not known"
            self._warnings.warn("gradient noise", message)
            return None
        self.register("gradient_noise", noise)
        return NoiseReports(noise, batch_grows=not hold_batch)

    def _make_noise(self, every: int) -> NoiseMeter | None:
        """What measures the gradient noise scale in one of so many steps; None: that is not possible."""
        del every
        return None

    def _make_rates(
        self, optimizer: torch.optim.Optimizer, reference_batch: int | None, rule: ScalingRule, warmup_samples: int
    ) -> LearningRates:
        return LearningRates(optimizer.param_groups, reference_batch, rule, warmup_samples)

    def register(self, name: str, thing: Stateful) -> None:
        """Make another object's state part of the training: of commits, of checkpoints, of what new workers receive.

        For a scheduler of `training.optimizer`, a gradient scaler, anything with `state_dict` and `load_state_dict`.
        All workers call it with the same names, after the constructor and before `run`. If the training continues from
        a checkpoint, the object's state in it is loaded here.

        A scheduler of torch follows the sample counter from then on, where its `step` is given to `step`: see
        `schedule_batch`.

        Args:
            name: A name that is unique in the training.
            thing: The object.

        Raises:
            TypeError: its state contains something else than tensors, numbers, text, and containers of these.
        """
        snapshot_of(thing.state_dict(), name)
        self._add(name, thing)
        if self._steps_schedules and is_schedule(thing) and not self._as_release_0_1:
            self._follow_samples(name, cast(LRScheduler, thing))

    def _add(self, name: str, thing: Stateful) -> None:
        self._state.extra.add(name, thing)
        self._state.extra.load({key: state for key, state in self._extra_on_disk.items() if key == name})

    def _follow_samples(self, name: str, scheduler: LRScheduler) -> None:
        earlier_version = self._reference_batch and f"{name}{_BY_SAMPLES}" not in self._extra_on_disk
        self._schedules.append(self._schedule_of(name, scheduler, self.schedule_batch))
        self._rates.leave_to_schedule()
        move_to(scheduler, self.optimizer)
        if self._rates_on_disk is None:
            return
        # Earlier versions saved scaled rates.
        factor = self._state.ramp.end if earlier_version else 1.0
        for group, rate in zip(self.optimizer.param_groups, self._rates_on_disk, strict=True):
            group["lr"] = rate / factor

    def _schedule_of(self, name: str, scheduler: LRScheduler, batch: int) -> SampleSchedule:
        """Step a scheduler, whose state has been loaded, by samples.

        Args:
            name: The name under which its state is saved.
            scheduler: The scheduler.
            batch: Samples of one of its steps.
        """
        schedule = SampleSchedule(scheduler, batch)
        made, beside = schedule.rates_by_step, f"{name}{_BY_SAMPLES}"
        self._add(beside, schedule)
        if beside in self._extra_on_disk:
            schedule.go_on(made, self.global_batch)
        elif self.rank == 0:
            schedule.say(schedule.in_words())
        return schedule

    @property
    def schedule_batch(self) -> int:
        """Samples that a step of a registered scheduler stands for, the same at every scale.

        It is `reference_batch`; without that, the global batch with which the job has begun. A schedule of a fixed
        length has `total samples // training.schedule_batch` steps.
        """
        if self._reference_batch is not None:
            return self._reference_batch
        saved = (state["batch"] for name, state in self._extra_on_disk.items() if name.endswith(_BY_SAMPLES))
        known = next((one.batch for one in self._schedules), None) or next(saved, None)
        return known or self.global_batch

    def next_indices(self) -> list[int]:
        """Dataset indices of this worker's part of the next global batch.

        Raises:
            RuntimeError: the training has `hold_batch`; use `micro_batches`.
        """
        return self._sampler.indices(self.samples)

    def micro_batches(self) -> Iterator[tuple[list[int], float]]:
        """Dataset indices of each pass of this worker for the next global batch, with the factor for its mean loss."""
        return self._sampler.passes(self.samples)

    def loss_weight(self, samples: int) -> float:
        """Factor for the mean loss of a pass with a number of samples: 1.0 without `hold_batch`."""
        return self._sampler.partition.weight(samples)

    def batches(self, until: int | None = None) -> ElasticBatches:
        """Dataset indices of this worker from the present position on, for `DataLoader(batch_sampler=...)`.

        Create a new iterator over the loader each time the training function is called.

        Args:
            until: Sample counter at which the iteration ends; None: never.
        """
        return ElasticBatches(self._sampler.order, lambda: self.samples, lambda: self._sampler.share, until)

    def run(self, train: Callable[[], None]) -> None:
        """Run a training function, and again after every rescale that this process survives. Usable as a decorator.

        When the process has to stop, `step` saves the state and raises; the process then ends here without returning.

        Args:
            train: The training function.
        """
        try:
            self._run(train)
        except Stopped as stopped:
            leave(stopped)

    def step(self, *also: Callable[[], object]) -> None:
        """Apply the gradients, count and report the batch, and commit if it is time.

        A batch counts as well if a gradient scaler leaves its step out.

        Args:
            also: Functions that belong to this batch and follow the optimizer's step, such as a scheduler's `step`.
                They are called before a commit. The `step` of a registered scheduler is called once for every
                `schedule_batch` samples.

        Raises:
            SystemExit: the process has to end, and its state is on disk. Do not catch it.
        """
        if self._noise is not None:
            self._noise.end(self.global_batch, self.workers)
        self._consistent = False
        with self._rates.scaled(self.optimizer.param_groups):
            self._apply_gradients()
        for call in also:
            self._call_for_batch(call)
        self._count()
        self._check_if_due()
        self._begin_noise()

    def _begin(self) -> None:
        super()._begin()
        self._begin_noise()

    def _begin_noise(self) -> None:
        if self._noise is not None:
            self._noise.begin(self._sampler.share)

    def _apply_gradients(self) -> None:
        if self._grad_scaler is None:
            self.optimizer.step()
        else:
            self._grad_scaler.step(self.optimizer)
            self._grad_scaler.update()

    def _call_for_batch(self, call: Callable[[], object]) -> None:
        stepped = getattr(call, "__self__", None) if getattr(call, "__name__", "") == "step" else None
        schedule = next((one for one in self._schedules if one.scheduler is stepped), None)
        if schedule is not None:
            schedule.step(self.global_batch)
            return
        if is_schedule(stepped) and not self._as_release_0_1:
            advice = 'training.register("scheduler", scheduler) before run'
            self._warnings.warn("schedule", f"a scheduler that is not registered begins again at each start: {advice}")
        call()

    def _count(self) -> None:
        """Count and report a batch whose gradients have been applied."""
        self._state.samples += self.global_batch
        self._consistent = True
        report(self.global_batch, self.samples)
        self._rates.apply(self.optimizer.param_groups, self._state.ramp.factor(self.samples))

    def _check_if_due(self) -> None:
        if self._check_interval.count():
            self._check()

    def finish(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save the state and say that the training is complete. Call it at every rank, after `run`.

        Args:
            metrics: Names and numbers, shown with the job.
        """
        self._say_if_schedules_are_apart()
        if self.rank == 0:
            self.checkpoints.save_and_wait(self.samples, lambda: self._content([random_states()]))
            done({**self.checkpoints.costs(), **(metrics or {})}, self.samples)
        # The others wait until that is on disk: if they exited early, the job would seem to have ended.
        self._broadcast([0, 0])

    def _say_if_schedules_are_apart(self) -> None:
        for schedule in self._schedules if self.rank == 0 else ():
            schedule.say_if_apart(self.samples)


def leave(stopped: Stopped) -> NoReturn:
    """End this process at once: its node has to be free, and an exit of torch takes a second or more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(stopped.code if isinstance(stopped.code, int) else 1)


def permutation(size: int, seed: int) -> list[int]:
    """The order of an epoch, by torch's generator."""
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
