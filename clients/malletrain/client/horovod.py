"""Elastic Horovod with few lines: commits when they are needed, one sample counter, a scaled learning rate.

```python
hvd.init()
training = ElasticTraining(model, optimizer, dataset_size=len(images), batch_per_worker=32, reference_batch=64)

@training.run
def train() -> None:
    while training.samples < wanted:
        indices = training.next_indices()
        optimizer.zero_grad()
        loss_of(model, indices).backward()
        training.step()

training.finish({"accuracy": ...})
```
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from malletrain.client import current_job, done, install_signal_handler, refresh, report, should_commit, should_stop
from malletrain.client.durable import DurableTraining
from malletrain.client.horovod_state import ElasticState
from malletrain.client.learning_rate import Accumulation, Ramp, Rule, accumulation, scaled_rate
from malletrain.client.sampling import ElasticBatches, EpochOrder, Place, micro_batches
from malletrain.client.snapshots import Stateful, random_states, restore_random_states, snapshot_of

_COMMIT, _SAVE, _STOP = 1, 2, 4
_CHECK_SECONDS = 0.1
_MOST_BATCHES_PER_CHECK = 1000


class _Stopped(SystemExit):
    """The job is to stop, and its state is on disk."""


class ElasticTraining:
    """One elastic training: state, sample counter, commits, checkpoints, learning rate.

    About every 0.1 s, rank 0 tells the others in one tiny broadcast whether to commit: when a rescale is coming, when
    MalleTrain asks, and every `commit_seconds`. Nothing is copied between those moments.

    Attributes:
        samples: Samples processed so far by all workers together, net of rollbacks.
        optimizer: The distributed optimizer; `step` calls it.
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
        """Call after `hvd.init()`. Loads the newest checkpoint, if there is one.

        Args:
            model: The model, on its device.
            optimizer: A plain optimizer over its parameters; its learning rates are those for `reference_batch`.
            dataset_size: Samples in the training set.
            batch_per_worker: Samples per worker and step.
            reference_batch: Global batch in samples that the learning rates fit; None leaves them alone.
            seed: Seed of the order of samples.
            commit_seconds: Longest time between two commits in memory: what a kill without notice can lose.
            checkpoint_seconds: Longest time between two checkpoints on disk. Commits are saved, too, as long as that
                takes less than a twentieth of the time: with a small model, next to nothing can be lost.
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
        if warmup_samples < 0:
            raise ValueError(f"warmup_samples: expected at least 0, got {warmup_samples}")
        self._model = model
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        self._batch = batch_per_worker
        self._reference = reference_batch
        self._rule, self._warmup, self._hold_batch = learning_rate_rule, warmup_samples, hold_batch
        self._commit_seconds = commit_seconds
        self._order = EpochOrder(dataset_size, seed, _permutation)
        job = current_job()
        folder = checkpoint_folder or (job.checkpoint_directory if job else None)
        self._durable = DurableTraining(folder, checkpoint_seconds)
        self._extra_on_disk: dict[str, Any] = {}
        # Under another name than "optimizer" it is synchronised before the model: Horovod fills a newcomer's optimizer
        # by a step with gradients of zero, and with weight decay that step changes the weights.
        self._state = ElasticState(
            distributed_optimizer=self.optimizer, model=model, samples=0, ramp=Ramp(), random_states=[]
        )
        self._state.register_reset_callbacks([self._after_reset])
        self._has_state = False
        self._generation = 0
        self._factor = 0.0
        self._after_reset()
        install_signal_handler()

    @property
    def samples(self) -> int:
        """Samples processed so far by all workers together."""
        return int(self._state.samples)

    @property
    def global_batch(self) -> int:
        """Samples of one step at the present scale."""
        return self._place.division.global_batch

    @property
    def micro_steps(self) -> int:
        """Passes of a worker in one step: 1 unless the batch is held."""
        return self._place.division.micro_steps

    def register(self, name: str, thing: Stateful) -> None:
        """Keep another object's state as the model's: in commits, in checkpoints, at newcomers.

        For a scheduler over `training.optimizer`, a gradient scaler, anything with `state_dict` and `load_state_dict`.
        All workers call it with the same names, after the constructor and before `run`. Its state in the checkpoint
        that the training goes on from is loaded here.

        Raises:
            TypeError: there is something else in its state than tensors, numbers, text, and containers of them.
        """
        snapshot_of(thing.state_dict(), name)
        self._state.register(name, thing)
        self._state.load_extra({key: state for key, state in self._extra_on_disk.items() if key == name})

    def next_indices(self) -> list[int]:
        """Dataset indices of this worker's share of the next global batch.

        Raises:
            RuntimeError: the batch is held; use `micro_batches`.
        """
        if self._hold_batch:
            raise RuntimeError("next_indices: shares are uneven with hold_batch; train with micro_batches()")
        return micro_batches(self._order, self.samples, self._place)[0]

    def micro_batches(self) -> Iterator[tuple[list[int], float]]:
        """Dataset indices of this worker's passes of the next global batch, and what to multiply each mean loss by."""
        for indices in micro_batches(self._order, self.samples, self._place):
            yield indices, self.loss_weight(len(indices))

    def loss_weight(self, samples: int) -> float:
        """What to multiply the mean loss of a pass over so many samples by: 1.0 unless the batch is held."""
        return self._place.division.weight(samples)

    def batches(self, until: int | None = None) -> ElasticBatches:
        """Dataset indices for `DataLoader(batch_sampler=...)`: those of this worker, from the present position on.

        Make a new iterator over the loader each time the training function is called.

        Args:
            until: Sample counter at which the iteration ends; None: never.
        """
        return ElasticBatches(self._order, lambda: self.samples, lambda: self._place, until)

    def run(self, train: Callable[[], None]) -> None:
        """Run a training function, again after every rescale. Usable as a decorator.

        When MalleTrain stops the job, `step` raises out of the function once the state is on disk, and the process
        ends here without returning.
        """

        def again(_: object) -> None:
            self._begin()
            train()

        try:
            hvd.elastic.run(again)(self._state)
        except _Stopped:
            # The node is wanted back: an interpreter with Horovod and torch takes a second or more to end by itself.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def step(self) -> None:
        """Apply the gradients, count and report the batch, and commit if it is time.

        Raises:
            SystemExit: the job is to stop here; its state is on disk. Let it pass.
        """
        self.optimizer.step()
        self._state.samples += self.global_batch
        report(self.global_batch, self.samples)
        self._set_rates()
        self._batches_to_check -= 1
        if self._batches_to_check <= 0:
            self._check()

    def finish(self, metrics: Mapping[str, float] | None = None) -> None:
        """Say that the training is complete. Call on every rank, after `run`."""
        if hvd.rank() == 0:
            self._save([random_states()])
            self._durable.wait()
            done({**self._durable.costs(), **(metrics or {})}, self.samples)
        # The others stay until that is on disk: an early exit looks like the end of the job.
        hvd.broadcast(torch.zeros(1), root_rank=0, name="malletrain.finish")

    def _begin(self) -> None:
        self._has_state = True
        self._adapt()
        random = self._state.random_states
        if hvd.rank() < len(random):
            restore_random_states(random[hvd.rank()])
        self._state.random_states = []
        now = time.monotonic()
        self._batches_to_check = 1
        self._checked_at, self._batches_since_check = now, 0
        self._committed_at = now
        self._step_seconds = _CHECK_SECONDS
        self._commit()

    def _check(self) -> None:
        """Rank 0 decides; all act on it at the same batch."""
        word = torch.tensor(self._decide() if hvd.rank() == 0 else [0, 0], dtype=torch.int64)
        flags, batches = hvd.broadcast(word, root_rank=0, name="malletrain.check").tolist()
        self._batches_to_check = batches
        if flags & _SAVE:
            states = hvd.allgather_object(random_states()) if hvd.size() > 1 else [random_states()]
            if hvd.rank() == 0:
                self._save(states)
        if flags & _STOP:
            if hvd.rank() == 0:
                self._durable.wait()
            print(f"malletrain: stopping at {self.samples} samples", file=sys.stderr)
            raise _Stopped
        if flags & _COMMIT:
            self._commit()
            self._state.check_host_updates()

    def _decide(self) -> list[int]:
        now = time.monotonic()
        if self._batches_since_check:
            self._step_seconds = (now - self._checked_at) / self._batches_since_check
        batches = max(1, min(_MOST_BATCHES_PER_CHECK, round(_CHECK_SECONDS / max(self._step_seconds, 1e-6))))
        self._checked_at, self._batches_since_check = now, batches
        if should_stop():
            return [_STOP | _SAVE, batches]
        flags = 0
        hosts_changed = not self._state._host_messages.empty()
        if should_commit() or hosts_changed or now - self._committed_at >= self._commit_seconds:
            flags |= _COMMIT
        if self._durable.is_due(committing=bool(flags & _COMMIT)):
            flags |= _SAVE
        return [flags, batches]

    def _commit(self) -> None:
        started = time.monotonic()
        self._state.save()
        self._committed_at = time.monotonic()
        self._durable.committed(self._committed_at - started)

    def _after_reset(self) -> None:
        refresh()
        self._divide()
        if hvd.rank() == 0 and not self._has_state:
            # At the start; or those who had the state have gone before this newcomer got it.
            self._load()

    def _divide(self) -> None:
        """Take the place in the present scale."""
        workers = int(hvd.size())
        if self._hold_batch and self._reference is not None:
            division = accumulation(self._reference, self._batch, workers)
        else:
            division = Accumulation((self._batch,) * workers, 1, self._batch * workers)
        self._generation += 1
        self._place = Place(self._generation, int(hvd.rank()), division)

    def _adapt(self) -> None:
        """Fit passes and rates to the present scale. All workers have the same state here, newcomers too."""
        self._divide()
        self.optimizer.set_backward_passes_per_step(self.micro_steps)
        if self._reference is not None:
            factor = scaled_rate(1.0, self._reference, self.global_batch, self._rule)
            self._state.ramp = self._state.ramp.towards(factor, self.samples, self._warmup)
        self._set_rates(anew=True)

    def _set_rates(self, anew: bool = False) -> None:
        if self._reference is None:
            return
        factor = self._state.ramp.factor(self.samples)
        # Only when it changes: between rescales the rates are the user's.
        if anew or factor != self._factor:
            self._factor = factor
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor

    def _save(self, states: list[dict[str, Any]]) -> None:
        self._durable.save(
            self.samples,
            lambda: {
                "model": self._model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "samples": self.samples,
                "ramp": astuple(self._state.ramp),
                "random_states": states,
                "extra": self._state.extra(),
            },
        )

    def _load(self) -> None:
        content = self._durable.load()
        if content is None:
            return
        self._model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self._state.samples = content["samples"]
        self._state.ramp = Ramp(*content["ramp"]) if "ramp" in content else Ramp()
        # Checkpoints of version 0.1 have rank 0's "torch_rng" alone.
        self._state.random_states = content.get("random_states") or [{"torch": content["torch_rng"]}]
        self._extra_on_disk = content.get("extra", {})
        self._state.load_extra(self._extra_on_disk)
        self._state.save()
        print(f"malletrain: resumed at {self.samples} samples", file=sys.stderr)


def _permutation(size: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
