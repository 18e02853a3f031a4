"""The interface of an elastic training for scripts, independent of the communication library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import torch

from malletrain.client import current_job, done, install_signal_handler, report
from malletrain.client.checkpoint_manager import CheckpointManager
from malletrain.client.extra_state import Stateful
from malletrain.client.job_context import read_batch_per_worker
from malletrain.client.lr_scaling import LearningRates, ScalingRule, ScalingRuleChoice, scaling_rule
from malletrain.client.replica import Replica, Stopped
from malletrain.client.sampling import ElasticBatches, EpochOrder, Permute, WorkerSampler
from malletrain.client.saving_marker import SavingMarker
from malletrain.client.snapshots import random_states, snapshot_of


class Training(Replica):
    """One elastic training: state, sample counter, commits, checkpoints, learning rate.

    About every 0.1 s, rank 0 tells the others in one small broadcast whether to commit, to save, or to stop: when a
    rescale is coming, when MalleTrain requests it, and every `commit_seconds`. Nothing is copied in between.
    """

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
        learning_rate_rule: ScalingRuleChoice = "auto",
        warmup_samples: int = 0,
        hold_batch: bool = False,
        grad_scaler: torch.amp.GradScaler | None = None,
        permute: Permute | None = None,
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

        Raises:
            ValueError: an argument is out of its range.
        """
        if hold_batch and reference_batch is None:
            raise ValueError("hold_batch: expected a reference_batch to hold, got none")
        batch_per_worker = read_batch_per_worker(os.environ) or batch_per_worker
        if batch_per_worker < 1:
            raise ValueError(f"batch_per_worker: expected at least 1 sample, got {batch_per_worker}")
        if warmup_samples < 0:
            raise ValueError(f"warmup_samples: expected at least 0, got {warmup_samples}")
        job = current_job()
        self._permute = permute or permutation
        super().__init__(
            model,
            self._make_sampler(dataset_size, batch_per_worker, reference_batch if hold_batch else None, seed),
            self._make_rates(optimizer, reference_batch, scaling_rule(optimizer, learning_rate_rule), warmup_samples),
            CheckpointManager(checkpoint_folder or (job.checkpoint_directory if job else None), checkpoint_seconds),
            SavingMarker(job.directory if job else None),
            commit_seconds,
        )
        self._grad_scaler = grad_scaler
        self._state = self._join(model, optimizer)
        if grad_scaler is not None:
            self.register("grad_scaler", grad_scaler)
        install_signal_handler()

    def _make_sampler(self, size: int, batch_per_worker: int, constant_batch: int | None, seed: int) -> WorkerSampler:
        return WorkerSampler(EpochOrder(size, seed, self._permute), batch_per_worker, constant_batch)

    def _make_rates(
        self, optimizer: torch.optim.Optimizer, reference_batch: int | None, rule: ScalingRule, warmup_samples: int
    ) -> LearningRates:
        return LearningRates(optimizer.param_groups, reference_batch, rule, warmup_samples)

    def register(self, name: str, thing: Stateful) -> None:
        """Make another object's state part of the training: of commits, of checkpoints, of what new workers receive.

        For a scheduler of `training.optimizer`, a gradient scaler, anything with `state_dict` and `load_state_dict`.
        All workers call it with the same names, after the constructor and before `run`. If the training continues from
        a checkpoint, the object's state in it is loaded here.

        Args:
            name: A name that is unique in the training.
            thing: The object.

        Raises:
            TypeError: its state contains something else than tensors, numbers, text, and containers of these.
        """
        snapshot_of(thing.state_dict(), name)
        self._state.extra.add(name, thing)
        self._state.extra.load({key: state for key, state in self._extra_on_disk.items() if key == name})

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
                They are called before a commit.

        Raises:
            SystemExit: the process has to end, and its state is on disk. Do not catch it.
        """
        self._consistent = False
        if self._grad_scaler is None:
            self.optimizer.step()
        else:
            self._grad_scaler.step(self.optimizer)
            self._grad_scaler.update()
        for call in also:
            call()
        self._count()
        self._check_if_due()

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
        if self.rank == 0:
            self._checkpoints.save_and_wait(self.samples, lambda: self._content([random_states()]))
            done({**self._checkpoints.costs(), **(metrics or {})}, self.samples)
        # The others wait until that is on disk: if they exited early, the job would seem to have ended.
        self._broadcast([0, 0])


def leave(stopped: Stopped) -> NoReturn:
    """End this process at once: its node has to be free, and an exit of torch takes a second or more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(stopped.code if isinstance(stopped.code, int) else 1)


def permutation(size: int, seed: int) -> list[int]:
    """The order of an epoch, by torch's generator."""
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
