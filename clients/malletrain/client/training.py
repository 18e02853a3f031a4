"""What a training script sees of an elastic training, whoever carries its gradients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from malletrain.client import current_job, done, install_signal_handler, report
from malletrain.client.durable import DurableTraining
from malletrain.client.learning_rate import Rule
from malletrain.client.rates import Rates
from malletrain.client.registered import Stateful
from malletrain.client.replica import Replica, Stopped
from malletrain.client.sampling import ElasticBatches, EpochOrder
from malletrain.client.saving_sign import SavingSign
from malletrain.client.shares import Shares
from malletrain.client.snapshots import random_states, snapshot_of


class Training(Replica):
    """One elastic training: state, sample counter, commits, checkpoints, learning rate.

    About every 0.1 s, rank 0 tells the others in one tiny broadcast whether to commit, to save, or to stop: when a
    rescale is coming, when MalleTrain asks, and every `commit_seconds`. Nothing is copied between those moments.
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
        learning_rate_rule: Rule = "linear",
        warmup_samples: int = 0,
        hold_batch: bool = False,
    ) -> None:
        """Call after the backend's initialisation. Loads the newest checkpoint, if there is one.

        Args:
            model: The model, on its device.
            optimizer: A plain optimizer over its parameters; its learning rates are those for `reference_batch`.
            dataset_size: Samples in the training set.
            batch_per_worker: Samples per worker and pass.
            reference_batch: Global batch in samples that the learning rates fit; None leaves them alone.
            seed: Seed of the order of samples.
            commit_seconds: Longest time in seconds between two commits.
            checkpoint_seconds: Longest time in seconds between two checkpoints on disk. Commits are saved, too, as long
                as that takes less than a twentieth of the time: with a small model, next to nothing can be lost.
            checkpoint_folder: Where to; by default the job's folder, and nowhere outside MalleTrain.
            learning_rate_rule: "linear" or "sqrt": how the rates follow the global batch.
            warmup_samples: Samples over which the rates rise when the global batch has grown (and at the start, if it
                is larger than `reference_batch`). They fall at once.
            hold_batch: Hold the global batch at `reference_batch` by gradient accumulation, `batch_per_worker` samples
                per pass at most, instead of scaling the rates. Train with `micro_batches` then.

        Raises:
            ValueError: an argument is out of its range.
        """
        if hold_batch and reference_batch is None:
            raise ValueError("hold_batch: expected a reference_batch to hold, got none")
        if batch_per_worker < 1:
            raise ValueError(f"batch_per_worker: expected at least 1 sample, got {batch_per_worker}")
        if warmup_samples < 0:
            raise ValueError(f"warmup_samples: expected at least 0, got {warmup_samples}")
        order = EpochOrder(dataset_size, seed, _permutation)
        job = current_job()
        super().__init__(
            model,
            Shares(order, batch_per_worker, reference_batch if hold_batch else None),
            Rates(optimizer.param_groups, reference_batch, learning_rate_rule, warmup_samples),
            DurableTraining(checkpoint_folder or (job.checkpoint_directory if job else None), checkpoint_seconds),
            SavingSign(job.directory if job else None),
            commit_seconds,
        )
        self._state = self._join(model, optimizer)
        install_signal_handler()

    def register(self, name: str, thing: Stateful) -> None:
        """Keep another object's state as the model's: in commits, in checkpoints, at newcomers.

        For a scheduler over `training.optimizer`, a gradient scaler, anything with `state_dict` and `load_state_dict`.
        All workers call it with the same names, after the constructor and before `run`. Its state in the checkpoint
        that the training goes on from is loaded here.

        Raises:
            TypeError: there is something else in its state than tensors, numbers, text, and containers of them.
        """
        snapshot_of(thing.state_dict(), name)
        self._state.registered.add(name, thing)
        self._state.registered.load({key: state for key, state in self._extra_on_disk.items() if key == name})

    def next_indices(self) -> list[int]:
        """Dataset indices of this worker's share of the next global batch.

        Raises:
            RuntimeError: the batch is held; use `micro_batches`.
        """
        return self._shares.even(self.samples)

    def micro_batches(self) -> Iterator[tuple[list[int], float]]:
        """Dataset indices of this worker's passes of the next global batch, and what to multiply each mean loss by."""
        return self._shares.passes(self.samples)

    def loss_weight(self, samples: int) -> float:
        """What to multiply the mean loss of a pass over so many samples by: 1.0 unless the batch is held."""
        return self._shares.division.weight(samples)

    def batches(self, until: int | None = None) -> ElasticBatches:
        """Dataset indices for `DataLoader(batch_sampler=...)`: those of this worker, from the present position on.

        Make a new iterator over the loader each time the training function is called.

        Args:
            until: Sample counter at which the iteration ends; None: never.
        """
        return ElasticBatches(self._shares.order, lambda: self.samples, lambda: self._shares.place, until)

    def run(self, train: Callable[[], None]) -> None:
        """Run a training function, again after every rescale that this process lives through. Usable as a decorator.

        When the process has to stop, `step` raises out of the function once the state is on disk, and the process ends
        here without returning.
        """
        try:
            self._run(train)
        except Stopped as stopped:
            # The node is wanted back: an interpreter with torch takes a second or more to end by itself.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(stopped.code if isinstance(stopped.code, int) else 1)

    def step(self, *also: Callable[[], object]) -> None:
        """Apply the gradients, count and report the batch, and commit if it is time.

        Args:
            also: What belongs to this batch and comes after the optimizer's step, such as a scheduler's `step`: called
                before a commit, so that no commit lies in between.

        Raises:
            SystemExit: the job is to stop here; its state is on disk. Let it pass.
        """
        self._whole = False
        self.optimizer.step()
        for call in also:
            call()
        self._state.samples += self.global_batch
        self._whole = True
        report(self.global_batch, self.samples)
        self._rates.set(self.optimizer.param_groups, self._state.ramp.factor(self.samples))
        if self._pace.count():
            self._check()

    def finish(self, metrics: Mapping[str, float] | None = None) -> None:
        """Say that the training is complete. Call on every rank, after `run`."""
        if self.rank == 0:
            self._durable.secure(self.samples, lambda: self._content([random_states()]))
            done({**self._durable.costs(), **(metrics or {})}, self.samples)
        # The others stay until that is on disk: an early exit looks like the end of the job.
        self._agree([0, 0])


def _permutation(size: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
