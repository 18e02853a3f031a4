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
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import horovod.torch as hvd
import torch

from malletrain.client import current_job, done, install_signal_handler, refresh, report, should_commit, should_stop
from malletrain.client.checkpoints import Checkpoints
from malletrain.client.sampling import EpochOrder

_COMMIT, _SAVE, _STOP = 1, 2, 4
_CHECK_SECONDS = 0.1
_MOST_BATCHES_PER_CHECK = 1000
_MOST_SAVING = 0.05
"""Share of the time that may go into checkpoints beyond those of `checkpoint_seconds`."""
_BROKEN = (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError)


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
        """
        self._model = model
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        self._batch = batch_per_worker
        self._reference = reference_batch
        self._commit_seconds = commit_seconds
        self._checkpoint_seconds = checkpoint_seconds
        self._order = EpochOrder(dataset_size, seed, _permutation)
        job = current_job()
        folder = checkpoint_folder or (job.checkpoint_directory if job else None)
        self._checkpoints = Checkpoints(folder) if folder else None
        # Under another name than "optimizer" it is synchronised before the model: Horovod fills a newcomer's optimizer
        # by a step with gradients of zero, and with weight decay that step changes the weights.
        self._state = hvd.elastic.TorchState(distributed_optimizer=self.optimizer, model=model, samples=0)
        self._state.register_reset_callbacks([self._after_reset])
        self._has_state = False
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._after_reset()
        install_signal_handler()

    @property
    def samples(self) -> int:
        """Samples processed so far by all workers together."""
        return int(self._state.samples)

    @property
    def global_batch(self) -> int:
        """Samples of one step at the present scale."""
        return self._batch * int(hvd.size())

    def next_indices(self) -> list[int]:
        """Dataset indices of this worker's share of the next global batch."""
        return self._order.share(self.samples, self._batch, int(hvd.rank()))

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
        self._batches_to_check -= 1
        if self._batches_to_check <= 0:
            self._check()

    def finish(self, metrics: Mapping[str, float] | None = None) -> None:
        """Say that the training is complete. Call on every rank, after `run`."""
        if hvd.rank() == 0:
            self._save()
            done(metrics, self.samples)
        # The others stay until that is on disk: an early exit looks like the end of the job.
        hvd.broadcast(torch.zeros(1), root_rank=0, name="malletrain.finish")

    def _begin(self) -> None:
        self._has_state = True
        now = time.monotonic()
        self._batches_to_check = 1
        self._checked_at, self._batches_since_check = now, 0
        self._committed_at = now
        self._step_seconds = _CHECK_SECONDS
        self._state.save()

    def _check(self) -> None:
        """Rank 0 decides; all act on it at the same batch."""
        word = torch.tensor(self._decide() if hvd.rank() == 0 else [0, 0], dtype=torch.int64)
        flags, batches = hvd.broadcast(word, root_rank=0, name="malletrain.check").tolist()
        self._batches_to_check = batches
        if flags & _SAVE and hvd.rank() == 0:
            self._save()
        if flags & _STOP:
            print(f"malletrain: stopping at {self.samples} samples", file=sys.stderr)
            raise _Stopped
        if flags & _COMMIT:
            self._committed_at = time.monotonic()
            self._state.commit()

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
        since = now - self._saved_at
        if since >= self._checkpoint_seconds or (flags & _COMMIT and self._save_seconds <= _MOST_SAVING * since):
            flags |= _SAVE
        return [flags, batches]

    def _after_reset(self) -> None:
        refresh()
        if hvd.rank() == 0 and not self._has_state:
            # At the start; or those who had the state have gone before this newcomer got it.
            self._load()
        if self._reference is None:
            return
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.global_batch / self._reference

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        started = time.monotonic()
        content = {
            "model": self._model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "torch_rng": torch.get_rng_state(),
        }

        def write(stream: BinaryIO) -> None:
            torch.save(content, stream)

        self._checkpoints.save(self.samples, write)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def _load(self) -> None:
        content = self._checkpoints.load(_read, _BROKEN) if self._checkpoints else None
        if content is None:
            return
        self._model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        torch.set_rng_state(content["torch_rng"])
        self._state.samples = content["samples"]
        self._state.save()
        print(f"malletrain: resumed at {self.samples} samples", file=sys.stderr)


def _permutation(size: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    missing = {"model", "optimizer", "samples", "torch_rng"} - content.keys()
    if missing:
        raise KeyError(f"{path.name} lacks {', '.join(sorted(missing))}")
    return content
